//! Both directions of one connection.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio_util::sync::CancellationToken;

use super::super::{Activity, drained};
use super::reset;

/// Per direction; allocated while bytes are there to move, so that idle connections cost no buffer.
const BUFFER: usize = 16 * 1024;

/// Forwards until both directions have ended, one side resets, nothing moves for `idle`, or the
/// target left and its time to drain is over.
pub(super) async fn relay(
    mut client: TcpStream,
    mut upstream: TcpStream,
    leaving: &CancellationToken,
    idle: Duration,
) {
    // Latency before packing: the peers' own buffering has already been decided by them.
    client.set_nodelay(true).ok();
    upstream.set_nodelay(true).ok();
    let activity = Activity::new();
    let clean = {
        let (from_client, to_client) = client.split();
        let (from_upstream, to_upstream) = upstream.split();
        let both = async {
            tokio::try_join!(
                pump(from_client, to_upstream, &activity),
                pump(from_upstream, to_client, &activity)
            )
        };
        tokio::select! {
            ended = both => ended.is_ok(),
            () = activity.idle_for(idle) => false,
            () = drained(leaving) => false,
        }
    };
    if !clean {
        reset(&client);
        reset(&upstream);
    }
}

/// Moves bytes one way until end of file, which is passed on (half-close). Fails if *reading* fails:
/// the other peer must see a reset too, never a proper end of truncated data. A failed write only
/// ends this direction: what the peer sent before it went may still be on its way.
async fn pump(from: ReadHalf<'_>, mut to: WriteHalf<'_>, activity: &Activity) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut buffer = Vec::with_capacity(BUFFER);
        loop {
            match from.try_read_buf(&mut buffer) {
                Ok(0) => {
                    to.shutdown().await.ok();
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            activity.touch();
            if to.write_all(&buffer).await.is_err() {
                return Ok(());
            }
            activity.touch();
            buffer.clear();
        }
    }
}
