//! A text endpoint for Prometheus: the figures of a run by name, for whoever asks.
//!
//! `metrics` is what is known and how it is written; `server` is who answers. Records only change numbers under a lock
//! that is held for microseconds; text is made when somebody asks.

mod metrics;
mod server;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandem_events::Record;
use tandem_pipeline::Worker;

use self::metrics::Metrics;
use crate::export::{ExportError, Exporter};

/// Holding one of these means that `http://ADDRESS/metrics` is answered. It ends with
/// [`finish`](Exporter::finish), or when it is dropped, within a fraction of a second whatever clients do.
#[derive(Debug)]
pub struct Prometheus {
    metrics: Arc<Mutex<Metrics>>,
    address: SocketAddr,
    server: Option<Worker>,
}

impl Prometheus {
    /// Listens at `address`, see [`listen_address`]. Port 0 takes one that is free.
    ///
    /// Fails when nobody can listen there, most likely because another program does.
    pub fn serve(address: SocketAddr) -> Result<Self, ExportError> {
        let bind = |source| ExportError::Bind { address, source };
        let listener = TcpListener::bind(address).map_err(bind)?;
        // So that the thread can look up from it: nothing ends an `accept` that waits.
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let metrics = Arc::new(Mutex::new(Metrics::default()));
        let shown = Arc::clone(&metrics);
        let text = move || lock(&shown).to_string();
        let server = Worker::spawn_background("prometheus", move |stop| server::serve(&listener, stop, text))?;
        Ok(Self { metrics, address, server: Some(server) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Exporter for Prometheus {
    fn name(&self) -> &'static str {
        "Prometheus"
    }

    fn take(&mut self, record: &Record) -> io::Result<()> {
        lock(&self.metrics).take(record);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.server.take();
        Ok(())
    }
}

/// The address that `text` means: `9090` and `:9090` are that port of this machine alone; `0.0.0.0:9090` is for
/// everyone who can reach it.
pub fn listen_address(text: &str) -> Result<SocketAddr, ExportError> {
    let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')).unwrap_or(text);
    let address = match port.parse() {
        Ok(port) => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        Err(_) => text.parse().ok(),
    };
    address.ok_or_else(|| ExportError::Address { text: text.to_owned() })
}

fn lock(metrics: &Mutex<Metrics>) -> MutexGuard<'_, Metrics> {
    // Figures are replaced one by one: whoever panicked left good ones behind.
    metrics.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
