//! Requests and answers of http, below the clients of the stores: timeouts, bounds, and servers that ignore ranges.
//!
//! Clients read the body of an answer that is not an object (an error, a list) as a whole, however long. Here every such
//! body is read up to a bound first.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, RANGE};

/// The longest body that is not the answer to a range: a page of a list, or a whole object from a server that ignores
/// ranges.
const MAX_WHOLE_BYTES: u64 = 64 << 20;
/// What is read of the body of an error. Some stores explain in it.
const MAX_ERROR_BYTES: usize = 8 << 10;

/// An answer that stays the same however often it is asked for, and that says nothing about the object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RefusedAnswer {
    /// The server sends a whole object where a part was asked for.
    #[error(
        "expected a server that answers ranges, found one that sends whole objects, this one over {MAX_WHOLE_BYTES} bytes"
    )]
    IgnoresRange,
    /// A status without a meaning of its own.
    #[error("the server answered {status}: {body}")]
    Status {
        /// The status.
        status: StatusCode,
        /// The beginning of the body.
        body: String,
    },
}

/// The one pool of connections, as all clients use it.
#[derive(Debug)]
pub(crate) struct Transport {
    client: reqwest::Client,
    timeout: Duration,
}

impl Transport {
    /// Fails if TLS cannot be set up.
    pub(crate) fn connect(timeout: Duration) -> Result<HttpClient, reqwest::Error> {
        // Fails if a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || reqwest::Client::builder().connect_timeout(timeout).user_agent("tandem");
        // A machine without root certificates can still use plain http; https then fails as untrusted.
        let client = builder().build().or_else(|_| builder().tls_certs_only([]).build())?;
        Ok(HttpClient::new(Transport { client, timeout }))
    }

    async fn answer(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let request = self.with_authorization(request);
        let range = request.headers().get(RANGE).and_then(|value| parse_range(value.to_str().ok()?));
        let asked_range = request.headers().contains_key(RANGE);
        let response = self.in_time(self.client.call(request)).await??;
        let status = response.status();
        if status == StatusCode::PARTIAL_CONTENT && asked_range {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        if !status.is_success() {
            let body = self.beginning(body).await;
            return match has_meaning(status) {
                true => Ok(HttpResponse::from_parts(parts, body.into())),
                false => Err(refuse(RefusedAnswer::Status { status, body: explain(status, &body) })),
            };
        }
        let claimed = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if asked_range && claimed.is_some_and(|length| length > MAX_WHOLE_BYTES) {
            return Err(refuse(RefusedAnswer::IgnoresRange));
        }
        let body = self.whole(body).await?;
        let Some(range) = range else { return Ok(HttpResponse::from_parts(parts, body.into())) };
        let num_bytes = body.len() as u64;
        let end = range.end.min(num_bytes);
        let start = range.start.min(end);
        let found = format!("bytes {start}-{}/{num_bytes}", end.saturating_sub(1));
        if start < end
            && let Ok(found) = HeaderValue::from_str(&found)
        {
            parts.status = StatusCode::PARTIAL_CONTENT;
            parts.headers.insert(CONTENT_RANGE, found);
            parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(end - start));
        }
        // Both fit: the body is in memory.
        Ok(HttpResponse::from_parts(parts, body.slice(start as usize..end as usize).into()))
    }

    /// Moves user and password from the URL to a header: the client of a store sends the URL as it is.
    fn with_authorization(&self, mut request: HttpRequest) -> HttpRequest {
        if !request.uri().authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return request;
        }
        let Ok(built) = self.client.get(request.uri().to_string()).build() else { return request };
        if let Ok(uri) = built.url().as_str().parse() {
            *request.uri_mut() = uri;
            request.headers_mut().extend(built.headers().clone());
        }
        request
    }

    async fn whole(&self, body: HttpResponseBody) -> Result<Bytes, HttpError> {
        let mut stream = body.bytes_stream();
        let mut bytes = Vec::new();
        while let Some(chunk) = self.in_time(stream.next()).await? {
            let chunk = chunk?;
            if (bytes.len() + chunk.len()) as u64 > MAX_WHOLE_BYTES {
                return Err(refuse(RefusedAnswer::IgnoresRange));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.into())
    }

    /// As much of the body of an error as there is.
    async fn beginning(&self, body: HttpResponseBody) -> Bytes {
        let mut stream = body.bytes_stream();
        let mut bytes = Vec::new();
        while let Ok(Some(Ok(chunk))) = self.in_time(stream.next()).await {
            let room = MAX_ERROR_BYTES - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if bytes.len() == MAX_ERROR_BYTES {
                break;
            }
        }
        // The client expects text.
        String::from_utf8_lossy(&bytes).into_owned().into()
    }

    async fn in_time<T>(&self, future: impl Future<Output = T>) -> Result<T, HttpError> {
        let result = tokio::time::timeout(self.timeout, future).await;
        result.map_err(|_| HttpError::new(HttpErrorKind::Timeout, timed_out(self.timeout)))
    }
}

impl HttpService for Transport {
    fn call<'s, 'f>(
        &'s self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(self.answer(request))
    }
}

/// Gives every client the same connections.
#[derive(Clone, Debug)]
pub(crate) struct SharedConnector(pub(crate) HttpClient);

impl HttpConnector for SharedConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.0.clone())
    }
}

/// No byte came in time.
pub(crate) fn timed_out(timeout: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no byte within {timeout:?}"))
}

/// Whether the clients know what to make of a status. A 5xx is asked for again.
fn has_meaning(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 304 | 401 | 403 | 404 | 405 | 408 | 409 | 412 | 429)
}

fn explain(status: StatusCode, body: &[u8]) -> String {
    let body: String = String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).take(500).collect();
    match status.is_redirection() {
        true => format!("expected the region of the bucket in AWS_REGION, found a redirect to another one {body}"),
        false => body,
    }
}

fn refuse(answer: RefusedAnswer) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, answer)
}

/// `bytes=first-last`.
fn parse_range(value: &str) -> Option<Range<u64>> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_from_its_header() {
        assert_eq!(parse_range("bytes=3-9"), Some(3..10));
        for value in ["bytes=-9", "bytes=3-", "items=3-9", "bytes=0-18446744073709551615"] {
            assert_eq!(parse_range(value), None, "{value}");
        }
    }

    #[test]
    fn a_client_for_https_can_be_built() {
        Transport::connect(Duration::from_secs(1)).unwrap();
    }
}
