//! Requests to stores: the threads they run on, and what is asked of every answer.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::list::PaginatedListOptions;
use object_store::{GetOptions, GetRange, GetResult, ListResult, ObjectMeta};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use crate::clients::{StoreClient, StoreClients};
use crate::error::StorageError;
use crate::interrupt::StorageInterrupt;
use crate::location::ObjectLocation;
use crate::redact::redact;
use crate::retry::{AttemptError, Attempts, StorageSettings, refused};
use crate::stamp::ObjectStamp;
use crate::transport::{RefusedAnswer, Transport, timed_out};

/// Threads for requests. They only wait and copy.
const NUM_THREADS: usize = 2;
/// Memory that a request takes before its first byte has come, at most. Grows with the bytes.
const MAX_FIRST_BYTES: usize = 16 << 20;

/// Threads and clients for stores.
pub(crate) struct RemoteAccess {
    /// Always there until it is dropped.
    runtime: Option<Runtime>,
    clients: StoreClients,
    settings: StorageSettings,
}

/// A request in flight on another thread.
pub(crate) struct InFlight<T> {
    answer: Receiver<Result<T, StorageError>>,
    task: AbortHandle,
    location: ObjectLocation,
}

/// An object, and how to ask for it.
#[derive(Clone)]
struct Target {
    client: StoreClient,
    path: object_store::path::Path,
    location: ObjectLocation,
    settings: StorageSettings,
}

impl RemoteAccess {
    /// Starts the threads. Fails with a message.
    pub(crate) fn start(settings: StorageSettings, variables: Vec<(String, String)>) -> Result<RemoteAccess, String> {
        let client = Transport::connect(settings.request_timeout).map_err(|error| error.to_string())?;
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(NUM_THREADS).thread_name("storage").enable_all();
        let runtime = builder.build().map_err(|error| error.to_string())?;
        Ok(RemoteAccess { runtime: Some(runtime), clients: StoreClients::new(client, variables), settings })
    }

    /// Starts to ask for the stamp of an object.
    pub(crate) fn stamp(&self, location: &ObjectLocation) -> Result<InFlight<ObjectStamp>, StorageError> {
        let target = self.target(location)?;
        self.spawn(location, async move { target.stamp().await })
    }

    /// Starts to read bytes of an object that looks like `expected`.
    pub(crate) fn read(
        &self,
        location: &ObjectLocation,
        range: Range<u64>,
        expected: ObjectStamp,
    ) -> Result<InFlight<Bytes>, StorageError> {
        let target = self.target(location)?;
        self.spawn(location, async move { target.read(range, &expected).await })
    }

    /// Starts to list keys that begin with the key of `folder`, a slash and `prefix`, up to the next slash.
    pub(crate) fn list(
        &self,
        folder: &ObjectLocation,
        prefix: &str,
        max_entries: u64,
    ) -> Result<InFlight<ListResult>, StorageError> {
        let target = self.target(folder)?;
        let key = target.path.as_ref();
        let prefix = if key.is_empty() { prefix.to_owned() } else { format!("{key}/{prefix}") };
        self.spawn(folder, async move { target.list(prefix, max_entries).await })
    }

    fn target(&self, location: &ObjectLocation) -> Result<Target, StorageError> {
        let bad = |reason: String| StorageError::BadLocation { text: location.to_string(), reason };
        let url = location.url().ok_or_else(|| bad("expected a URL".into()))?;
        let path = match url.scheme.is_http() {
            // The client is for this very URL.
            true => object_store::path::Path::default(),
            false => object_store::path::Path::parse(&url.key).map_err(|error| bad(redact(&error.to_string())))?,
        };
        let client = self.clients.get(location, url)?;
        Ok(Target { client, path, location: location.clone(), settings: self.settings })
    }

    fn spawn<T: Send + 'static>(
        &self,
        location: &ObjectLocation,
        request: impl Future<Output = Result<T, StorageError>> + Send + 'static,
    ) -> Result<InFlight<T>, StorageError> {
        if StorageInterrupt::of_this_thread().is_some_and(|interrupt| interrupt.is_raised()) {
            return Err(interrupted(location));
        }
        let (sender, answer) = sync_channel(1);
        let runtime = self.runtime.as_ref().ok_or_else(|| gone(location))?;
        let task = runtime.spawn(async move {
            // There is room for one answer, and nobody minds if nobody waits.
            let _ = sender.try_send(request.await);
        });
        Ok(InFlight { answer, task: task.abort_handle(), location: location.clone() })
    }
}

impl Drop for RemoteAccess {
    fn drop(&mut self) {
        // Waits for nothing: a name that is being looked up may take minutes.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for RemoteAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteAccess").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<T> InFlight<T> {
    /// Waits for the answer. Fails with [`StorageError::Interrupted`] when the interrupt of this thread is raised.
    pub(crate) fn wait(self) -> Result<T, StorageError> {
        let Some(interrupt) = StorageInterrupt::of_this_thread() else { return self.receive() };
        let Some(_wait) = interrupt.begin_wait(self.task.clone()) else { return Err(interrupted(&self.location)) };
        // Cancelled, the request gives no answer.
        self.receive().map_err(|error| if interrupt.is_raised() { interrupted(&self.location) } else { error })
    }

    fn receive(&self) -> Result<T, StorageError> {
        self.answer.recv().unwrap_or_else(|_| Err(gone(&self.location)))
    }
}

impl<T> Drop for InFlight<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A request ended without an answer: its thread panicked, or the program ends.
fn gone(location: &ObjectLocation) -> StorageError {
    StorageError::Unreachable { location: location.to_string(), attempts: 1, last: "the request was cancelled".into() }
}

/// Whoever waits stops.
fn interrupted(location: &ObjectLocation) -> StorageError {
    StorageError::Interrupted { location: location.to_string() }
}

impl Target {
    async fn stamp(&self) -> Result<ObjectStamp, StorageError> {
        let mut attempts = Attempts::new(self.settings, &self.location);
        loop {
            match self.head(GetOptions { head: true, ..GetOptions::default() }).await {
                Ok(meta) => return Ok(ObjectStamp::of_object(&meta)),
                Err(AttemptError::Final(error)) => return self.stamp_of_signed(error).await,
                Err(error) => attempts.after(error).await?,
            }
        }
    }

    /// A signature is often for GET only. Then the first byte shows the stamp too.
    async fn stamp_of_signed(&self, error: StorageError) -> Result<ObjectStamp, StorageError> {
        if !self.location.url().is_some_and(|url| url.has_query()) {
            return Err(error);
        }
        let mut attempts = Attempts::new(self.settings, &self.location);
        loop {
            let range = Some(GetRange::Bounded(0..1));
            match self.head(GetOptions { range, ..GetOptions::default() }).await {
                Ok(meta) => return Ok(ObjectStamp::of_object(&meta)),
                Err(error) => attempts.after(error).await?,
            }
        }
    }

    async fn head(&self, options: GetOptions) -> Result<ObjectMeta, AttemptError> {
        let answer = self.client.objects.get_opts(&self.path, options).await;
        Ok(answer.map_err(|error| AttemptError::of(error, &self.location))?.meta)
    }

    /// Every attempt reads the whole range: what came before may be of another version.
    async fn read(&self, range: Range<u64>, expected: &ObjectStamp) -> Result<Bytes, StorageError> {
        let mut attempts = Attempts::new(self.settings, &self.location);
        loop {
            match self.read_once(range.clone(), expected).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => attempts.after(error).await?,
            }
        }
    }

    async fn read_once(&self, range: Range<u64>, expected: &ObjectStamp) -> Result<Bytes, AttemptError> {
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let answer = match self.client.objects.get_opts(&self.path, options).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.outside(error, expected).await),
        };
        ObjectStamp::of_object(&answer.meta).check(expected, &self.location)?;
        if answer.range != range {
            return Err(AttemptError::Again(format!("expected bytes {range:?}, found {:?}", answer.range)));
        }
        self.collect(answer, range.end - range.start).await
    }

    async fn collect(&self, answer: GetResult, num_bytes: u64) -> Result<Bytes, AttemptError> {
        let mut bytes = Vec::with_capacity(usize::try_from(num_bytes).unwrap_or(usize::MAX).min(MAX_FIRST_BYTES));
        let mut stream = answer.into_stream();
        let timeout = self.settings.request_timeout;
        loop {
            let chunk = tokio::time::timeout(timeout, stream.next()).await;
            let chunk = chunk.map_err(|_| AttemptError::Again(timed_out(timeout).to_string()))?;
            let Some(chunk) = chunk else { break };
            bytes.extend_from_slice(&chunk.map_err(|error| AttemptError::of(error, &self.location))?);
            if bytes.len() as u64 > num_bytes {
                break;
            }
        }
        match bytes.len() as u64 {
            found if found == num_bytes => Ok(bytes.into()),
            found => Err(AttemptError::Again(format!("expected {num_bytes} bytes, found {found}"))),
        }
    }

    /// What an error means for a range. A range that a store calls unsatisfiable (416) is of an object that shrank.
    async fn outside(&self, error: object_store::Error, expected: &ObjectStamp) -> AttemptError {
        let is_outside =
            matches!(refused(&error), Some(RefusedAnswer::Status { status, .. }) if status.as_u16() == 416);
        if is_outside {
            let found = self.stamp().await.and_then(|found| found.check(expected, &self.location));
            if let Err(error) = found {
                return error.into();
            }
        }
        AttemptError::of(error, &self.location)
    }

    async fn list(&self, prefix: String, max_entries: u64) -> Result<ListResult, StorageError> {
        let Some(lists) = &self.client.lists else {
            let reason = "expected a store with lists, found plain http: name each object, or use {000..127}".into();
            return Err(StorageError::Unsupported { location: self.location.to_string(), reason });
        };
        let mut all = ListResult { common_prefixes: Vec::new(), objects: Vec::new(), extensions: Default::default() };
        let (mut page_token, mut num_pages) = (None, 0);
        let mut attempts = Attempts::new(self.settings, &self.location);
        loop {
            let options = PaginatedListOptions {
                delimiter: Some("/".into()),
                page_token: page_token.clone(),
                ..PaginatedListOptions::default()
            };
            let prefix = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
            let page = match lists.list_paginated(prefix, options).await {
                Ok(page) => page,
                Err(error) => {
                    attempts.after(AttemptError::of(error, &self.location)).await?;
                    continue;
                }
            };
            // The next page has its own attempts.
            attempts = Attempts::new(self.settings, &self.location);
            all.common_prefixes.extend(page.result.common_prefixes);
            all.objects.extend(page.result.objects);
            // Pages count too: a store may give empty ones for ever.
            num_pages += 1;
            if (all.objects.len() + all.common_prefixes.len() + num_pages) as u64 > max_entries {
                let pattern = self.location.to_string();
                return Err(StorageError::TooMany { pattern, what: "entries of a folder", limit: max_entries });
            }
            match page.page_token {
                Some(token) => page_token = Some(token),
                None => return Ok(all),
            }
        }
    }
}
