//! One request to a server: over TLS with a self-signed certificate, or in the clear.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// For the whole request.
const WITHIN: Duration = Duration::from_secs(10);

/// What a server answered.
#[derive(Debug, Clone)]
pub struct Response {
    /// The HTTP status.
    pub status: StatusCode,
    /// The HTTP headers.
    pub headers: HeaderMap,
    /// The body; bytes that are not UTF-8 are replaced.
    pub body: String,
}

/// Asks `https://ADDRESS PATH` on a new connection, without looking at the certificate.
///
/// # Errors
///
/// If there is no answer within 10 seconds; any status is an answer.
pub async fn get(address: SocketAddr, path: &str, bearer_token: Option<&str>) -> Result<Response> {
    let request = request(address, path, bearer_token)?;
    let asked = async {
        let socket = TcpStream::connect(address).await.context("connect")?;
        let stream = connector()?
            .connect(ServerName::IpAddress(address.ip().into()), socket)
            .await
            .context("shake hands over TLS")?;
        exchange(stream, request).await
    };
    bounded(Box::pin(asked))
        .await
        .with_context(|| format!("GET https://{address}{path}"))
}

/// Asks `http://ADDRESS PATH` on a new connection.
///
/// # Errors
///
/// If there is no answer within 10 seconds; any status is an answer.
pub async fn get_in_the_clear(address: SocketAddr, path: &str) -> Result<Response> {
    let request = request(address, path, None)?;
    let asked = async {
        let socket = TcpStream::connect(address).await.context("connect")?;
        exchange(socket, request).await
    };
    bounded(Box::pin(asked))
        .await
        .with_context(|| format!("GET http://{address}{path}"))
}

async fn bounded(asked: impl Future<Output = Result<Response>>) -> Result<Response> {
    timeout(WITHIN, asked)
        .await
        .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {WITHIN:?}")))
}

fn request(address: SocketAddr, path: &str, bearer_token: Option<&str>) -> Result<Request<Empty<Bytes>>> {
    let mut request = Request::get(path).header(header::HOST, address.to_string());
    if let Some(token) = bearer_token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    Ok(request.body(Empty::new())?)
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<Response> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Response {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

fn connector() -> Result<TlsConnector> {
    let provider = ring::default_provider();
    let verifier = AnyCertificate {
        algorithms: provider.signature_verification_algorithms,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Believes every certificate, but not that who shows it has its key.
#[derive(Debug)]
struct AnyCertificate {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
