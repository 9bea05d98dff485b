//! The scripted plugin in a process of its own: `bulkhead-scripted --endpoint unix:///PATH --journal FILE
//! [--name NAME] [--revision NUMBER] [--script FILE]`.
//!
//! The script is a JSON list of pairs: an RPC and how its next call is answered. The journal is the cloud's memory over
//! the process's end. A process that a host spawned ends with its standard input.

use std::{collections::VecDeque, fs, io, path::PathBuf};

use anyhow::{Context, Result, bail};
use bulkhead_scripted::{Behaviour, Cloud, Journal, Options, Rpc, Script, ScriptedPlugin};

struct Arguments {
    socket: PathBuf,
    journal: PathBuf,
    options: Options,
    script: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments {
        socket,
        journal,
        options,
        script: path,
    } = arguments(std::env::args().skip(1).collect())?;
    let script = Script::default();
    if let Some(path) = path {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let calls: Vec<(Rpc, Behaviour)> = serde_json::from_str(&text).context("read the script")?;
        for (rpc, behaviour) in calls {
            script.next(rpc, [behaviour]);
        }
    }
    let cloud = Cloud::new(Journal::at(&journal));
    let plugin = ScriptedPlugin::start(&socket, options, script, &cloud).await?;
    if std::env::var_os("BULKHEAD_SPAWNED").is_some() {
        let end = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
        end.await??;
        return Ok(());
    }
    plugin.serve().await
}

fn arguments(mut words: VecDeque<String>) -> Result<Arguments> {
    let mut socket = std::env::var("BULKHEAD_ENDPOINT").ok();
    let (mut journal, mut script, mut options) = (None, None, Options::new("scripted"));
    while let Some(flag) = words.pop_front() {
        let value = words
            .pop_front()
            .with_context(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--endpoint" => socket = Some(value),
            "--journal" => journal = Some(value.into()),
            "--name" => options.name = value,
            "--revision" => options.revision = value.parse().context("--revision")?,
            "--script" => script = Some(value.into()),
            _ => bail!("unknown flag {flag}"),
        }
    }
    let socket = socket.context("--endpoint is missing")?;
    let socket = socket
        .strip_prefix("unix://")
        .context("--endpoint is no unix:// address")?;
    Ok(Arguments {
        socket: socket.into(),
        journal: journal.context("--journal is missing")?,
        options,
        script,
    })
}
