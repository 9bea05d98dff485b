//! Both directions of one connection.

use std::io;
use std::sync::atomic::AtomicU64;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::super::counters::count_bytes;
use super::super::{Activity, Shared, drained};
use super::reset;

/// Per direction; allocated while bytes are there to move, so that idle connections cost no buffer.
const BUFFER: usize = 16 * 1024;

/// For a direction that fills the usual buffer: fewer system calls for the same bytes.
const LARGE_BUFFER: usize = 128 * 1024;

/// How many directions of this process may have a large buffer at once: 16 MiB.
static LARGE_BUFFERS: Semaphore = Semaphore::const_new(128);

/// Forwards until both directions have ended, one side resets, nothing moves for too long, or the
/// target left and its time to drain is over.
pub(super) async fn relay(
    mut client: TcpStream,
    mut upstream: TcpStream,
    leaving: &CancellationToken,
    shared: &Shared,
) {
    // Latency before packing: the peers' own buffering has already been decided by them.
    client.set_nodelay(true).ok();
    upstream.set_nodelay(true).ok();
    let (activity, counters, limits) = (Activity::new(), &shared.counters, shared.limits());
    let clean = {
        let (from_client, to_client) = client.split();
        let (from_upstream, to_upstream) = upstream.split();
        let both = async {
            tokio::try_join!(
                pump(from_client, to_upstream, &activity, &counters.from_clients),
                pump(from_upstream, to_client, &activity, &counters.to_clients)
            )
        };
        tokio::select! {
            ended = both => ended.is_ok(),
            () = activity.idle_for(limits.connection_idle) => false,
            () = drained(leaving, limits.drain) => false,
        }
    };
    if !clean {
        reset(&client);
        reset(&upstream);
    }
}

/// Moves bytes one way until end of file, which is passed on (half-close). Fails if *reading* fails:
/// the other peer must see a reset too, never a proper end of truncated data. A failed write only
/// ends this direction: what the peer sent before it went may still be on its way. Nothing is read
/// while the other side takes nothing: a slow reader slows its writer down.
async fn pump(
    from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    activity: &Activity,
    moved: &AtomicU64,
) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut buffer = Buffer::new();
        loop {
            match from.try_read_buf(&mut buffer.bytes) {
                Ok(0) => {
                    to.shutdown().await.ok();
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            activity.touch();
            if to.write_all(&buffer.bytes).await.is_err() {
                return Ok(());
            }
            count_bytes(moved, buffer.bytes.len());
            activity.touch();
            buffer.turn();
        }
    }
}

/// Bytes on their way.
struct Buffer {
    bytes: Vec<u8>,
    large: Option<SemaphorePermit<'static>>,
}

impl Buffer {
    fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(BUFFER),
            large: None,
        }
    }

    /// Makes room for the next bytes, and more of it if there was too little.
    fn turn(&mut self) {
        let full = self.bytes.len() == self.bytes.capacity();
        self.bytes.clear();
        if full && self.large.is_none() {
            self.large = LARGE_BUFFERS.try_acquire().ok();
            if self.large.is_some() {
                self.bytes = Vec::with_capacity(LARGE_BUFFER);
            }
        }
    }
}
