//! A connection that carries its session, and is counted while it lives.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::Connected;

use crate::session::Session;

/// What bytes go over.
type Stream = Either<UnixStream, Box<TlsStream<TcpStream>>>;

/// A connection of a host, with its session.
#[derive(Debug)]
pub(crate) struct SessionStream {
    stream: Stream,
    session: Arc<Session>,
    _counted: Counted,
}

#[derive(Debug)]
struct Counted(Arc<watch::Sender<usize>>);

impl SessionStream {
    /// Begins a session, which counts while the stream lives.
    pub(crate) fn new(stream: Stream, count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|open| *open += 1);
        Self {
            stream,
            session: Arc::default(),
            _counted: Counted(Arc::clone(count)),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open = open.saturating_sub(1));
    }
}

impl Connected for SessionStream {
    type ConnectInfo = Arc<Session>;

    fn connect_info(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }
}

impl AsyncRead for SessionStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for SessionStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
