//! What the contestants are told: the same addresses, threads and timeouts, no access logs.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

/// Where one contestant listens, with both protocols.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    /// Address and port.
    pub(crate) at: SocketAddrV4,
    /// The addresses of the backends, which all have `backend_port`, with both protocols.
    pub(crate) backends: [Ipv4Addr; 2],
    pub(crate) backend_port: u16,
    /// Threads or worker processes.
    pub(crate) threads: usize,
}

/// Without `option splice-auto`, as it comes; `splice` turns it on.
pub(crate) fn haproxy(site: &Site, splice: bool) -> String {
    let Site {
        at,
        backends,
        backend_port,
        threads,
    } = site;
    let splice = if splice { "\n    option splice-auto" } else { "" };
    let mut text = format!(
        "global
    nbthread {threads}
    maxconn 4096
defaults
    mode tcp
    balance roundrobin
    timeout connect 2s
    timeout client 600s
    timeout server 600s{splice}
listen bench
    bind {at}
"
    );
    for (number, backend) in backends.iter().enumerate() {
        writeln!(
            text,
            "    server backend{number} {backend}:{backend_port} check inter 5s"
        )
        .ok();
    }
    text
}

/// `module` is the stream module's file if it is not built in; `folder` is for its pid file.
pub(crate) fn nginx(site: &Site, module: Option<&Path>, folder: &Path) -> String {
    let Site {
        at,
        backends,
        backend_port,
        threads,
    } = site;
    let load = module.map_or_else(String::new, |path| format!("load_module {};\n", path.display()));
    let [one, other] = backends;
    let folder = folder.display();
    format!(
        "{load}daemon off;
worker_processes {threads};
pid {folder}/nginx.pid;
error_log stderr error;
events {{
    worker_connections 8192;
}}
stream {{
    access_log off;
    proxy_connect_timeout 2s;
    upstream backends {{
        server {one}:{backend_port};
        server {other}:{backend_port};
    }}
    server {{
        listen {at} reuseport backlog=4096;
        proxy_timeout 600s;
        proxy_pass backends;
    }}
    server {{
        listen {at} udp reuseport;
        proxy_timeout 60s;
        proxy_pass backends;
    }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        Site {
            at: "127.64.0.10:7000".parse().unwrap(),
            backends: [[127, 64, 0, 101].into(), [127, 64, 0, 102].into()],
            backend_port: 7100,
            threads: 2,
        }
    }

    #[test]
    fn haproxy_has_both_backends_and_as_many_threads_and_splices_if_told() {
        let plain = haproxy(&site(), false);
        for line in [
            "    nbthread 2\n",
            "    bind 127.64.0.10:7000\n",
            "    server backend0 127.64.0.101:7100 check inter 5s\n",
            "    server backend1 127.64.0.102:7100 check inter 5s\n",
        ] {
            assert!(plain.contains(line), "{line:?} is not in {plain}");
        }
        assert!(!plain.contains("splice"));
        assert!(haproxy(&site(), true).contains("    option splice-auto\n"));
    }

    #[test]
    fn nginx_loads_the_module_first_if_it_is_a_file_and_serves_both_protocols() {
        let folder = Path::new("/tmp/x");
        let text = nginx(&site(), Some(Path::new("/m/stream.so")), folder);
        assert!(text.starts_with("load_module /m/stream.so;\n"), "{text}");
        assert!(nginx(&site(), None, folder).starts_with("daemon off;\nworker_processes 2;\n"));
        for line in [
            "        listen 127.64.0.10:7000 reuseport backlog=4096;\n",
            "        listen 127.64.0.10:7000 udp reuseport;\n",
            "        server 127.64.0.102:7100;\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }
}
