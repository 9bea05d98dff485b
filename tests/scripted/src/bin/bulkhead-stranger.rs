//! A process at a plugin's socket that is no plugin: `bulkhead-stranger --says nothing|noise --endpoint unix:///PATH`. It
//! takes every connection, and answers it with noise without end, or never.

use std::{
    io::{self, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    thread,
};

use anyhow::{Context, Result, bail};
use bulkhead_scripted::{argument, listen};

/// No frame of HTTP/2 begins so: this one would have 10 MiB, of a type that nobody knows.
const NOISE: [u8; 4096] = [0xa5; 4096];

fn main() -> Result<()> {
    let socket = argument("--endpoint")?;
    let socket = socket
        .strip_prefix("unix://")
        .context("--endpoint is no unix:// address")?;
    let answer = match argument("--says")?.as_str() {
        "nothing" => wait,
        "noise" => babble,
        other => bail!("--says {other}: it says nothing or noise"),
    };
    let listener: UnixListener = listen(socket.as_ref())?;
    for connection in listener.incoming() {
        let connection = connection?;
        // Ends with the connection, at the latest with this process.
        drop(thread::spawn(move || answer(connection)));
    }
    Ok(())
}

/// Reads until the other side gives up.
fn wait(mut connection: UnixStream) -> io::Result<()> {
    io::copy(&mut connection, &mut io::sink()).map(drop)
}

fn babble(mut connection: UnixStream) -> io::Result<()> {
    loop {
        connection.write_all(&NOISE)?;
    }
}
