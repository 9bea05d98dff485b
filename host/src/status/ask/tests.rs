use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread;

use rstest::rstest;

use super::*;
use crate::telemetry::Chain;

/// What is printed where a socket says `words` to anybody.
fn printed(words: &'static str, output: Output) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).unwrap() > 0);
        stream.write_all(words.as_bytes()).unwrap();
    });
    let said = answer(std::slice::from_ref(&path), output);
    server.join().unwrap();
    said.unwrap_or_else(|error| Chain(&error).to_string())
}

#[rstest]
#[case::no_http("hello\r\n\r\n", "does not answer as a host")]
#[case::another_server("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "status 404")]
#[case::no_json("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", "does not answer as a host")]
#[case::later_version(
    "HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{\"apiVersion\":\"v2\"}",
    "is of another version; see what it says with -o json"
)]
#[case::cut_off("HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{", "does not answer as a host")]
fn an_answer_that_is_none_is_one_line(#[case] said: &'static str, #[case] expected: &str) {
    let line = printed(said, Output::Table);
    assert!(line.contains(expected), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
}

#[test]
fn json_is_printed_as_it_comes() {
    let said = "HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{\"apiVersion\":\"v2\"}";
    assert_eq!(printed(said, Output::Json), "{\"apiVersion\":\"v2\"}");
}

#[test]
fn without_a_host_the_line_names_every_place_and_what_to_do() {
    let places = ["/nowhere/a.sock", "/nowhere/b.sock"].map(PathBuf::from);
    let error = answer(&places, Output::Table).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no host at /nowhere/a.sock or /nowhere/b.sock: none runs here, or it was given another --admin-socket; \
         give that here too"
    );
}

#[test]
fn a_socket_that_a_dead_host_left_is_told_as_that() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    drop(UnixListener::bind(&path).unwrap());
    let error = answer(std::slice::from_ref(&path), Output::Table).unwrap_err();
    assert!(matches!(error, AskError::Ended(_)), "{error}");
}

#[test]
fn the_first_place_that_has_a_socket_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("admin.sock");
    drop(UnixListener::bind(&there).unwrap());
    let places = [folder.path().join("missing.sock"), there.clone()];
    let error = answer(&places, Output::Table).unwrap_err();
    assert!(
        error.to_string().contains(&there.display().to_string()),
        "{error}"
    );
}

#[test]
fn a_refused_permission_says_who_may() {
    let error = unreached(Path::new("/s"), io::ErrorKind::PermissionDenied.into());
    assert_eq!(
        error.to_string(),
        "/s is not for this user; ask as the host's user or as root"
    );
}
