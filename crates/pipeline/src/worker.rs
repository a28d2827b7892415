//! A thread with a name and an owner. This is the only place in the workspace that starts threads.

use std::any::Any;
use std::io;
use std::panic::resume_unwind;
use std::thread::{self, Builder, JoinHandle};

use crate::StopFlag;

/// A thread could not be started, or panicked.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The system would not start it: too many threads, or no memory for its stack.
    #[error("thread {name} could not be started: {source}")]
    Spawn {
        /// The thread's name.
        name: String,
        /// What the system said.
        source: io::Error,
    },

    /// It panicked: a bug in the program, not in the data.
    #[error("thread {name} panicked: {message}")]
    Panicked {
        /// The thread's name.
        name: String,
        /// The text of the panic.
        message: String,
    },
}

impl WorkerError {
    /// The name of the thread.
    pub fn thread(&self) -> &str {
        match self {
            WorkerError::Spawn { name, .. } | WorkerError::Panicked { name, .. } => name,
        }
    }
}

/// The niceness of background threads, from 0 to 19. At 10 the scheduler gives a thread a tenth of the weight of others.
const BACKGROUND_NICENESS: i32 = 10;

/// Holding one of these means that its thread may be running. Both [`join`](Worker::join) and dropping it wait until
/// the thread has ended: no thread outlives its owner.
#[derive(Debug)]
pub struct Worker<T = ()> {
    name: String,
    stop: StopFlag,
    /// `None` only inside `join` and `drop`.
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread that runs `body`. What `body` returns comes out of [`join`](Worker::join).
    ///
    /// `body` gets the stop flag: it must check the flag between work items and use it for pauses. Linux shows the
    /// first 15 bytes of `name`. Fails when the system cannot start another thread.
    pub fn spawn<F>(name: impl Into<String>, body: F) -> Result<Self, WorkerError>
    where
        F: FnOnce(&StopFlag) -> T + Send + 'static,
    {
        Self::spawn_with(name.into(), StopFlag::new(), body)
    }

    /// [`spawn`](Worker::spawn) with a low scheduling priority, for work that is not urgent. When all cores are busy, the
    /// thread still gets about a tenth of a core.
    pub fn spawn_background<F>(name: impl Into<String>, body: F) -> Result<Self, WorkerError>
    where
        F: FnOnce(&StopFlag) -> T + Send + 'static,
    {
        Self::spawn(name, |stop| {
            lower_priority();
            body(stop)
        })
    }

    /// [`spawn`](Worker::spawn) with a flag that other workers may share. Raising it, which dropping the worker does too,
    /// stops them all.
    pub(crate) fn spawn_with<F>(name: String, stop: StopFlag, body: F) -> Result<Self, WorkerError>
    where
        F: FnOnce(&StopFlag) -> T + Send + 'static,
    {
        let flag = stop.clone();
        let spawned = Builder::new().name(name.clone()).spawn(move || body(&flag));
        match spawned {
            Ok(thread) => Ok(Self { name, stop, thread: Some(thread) }),
            Err(source) => Err(WorkerError::Spawn { name, source }),
        }
    }
}

impl<T> Worker<T> {
    /// The thread's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Asks the thread to stop. Does not wait for it.
    pub fn stop(&self) {
        self.stop.raise();
    }

    /// Whether `body` has returned or panicked, so that [`join`](Worker::join) will not wait.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the thread to return and takes its result. To end it early, [`stop`](Worker::stop) it first.
    pub fn join(mut self) -> Result<T, WorkerError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => Ok(result),
            Some(Err(panic)) => {
                Err(WorkerError::Panicked { name: std::mem::take(&mut self.name), message: message_of(&*panic) })
            }
            None => unreachable!("only join and drop take the thread, and both consume the worker"),
        }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.stop.raise();
        // A panic cannot be returned from a drop; the panic hook has printed it.
        let _ = thread.join();
    }
}

/// Calls `body` on a new thread and waits for its result. A panic is passed on.
pub(crate) fn on_own_thread<T: Send>(name: &str, body: impl FnOnce() -> T + Send) -> Result<T, WorkerError> {
    thread::scope(|scope| match Builder::new().name(name.to_owned()).spawn_scoped(scope, body) {
        Ok(thread) => Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic))),
        Err(source) => Err(WorkerError::Spawn { name: name.to_owned(), source }),
    })
}

/// Affects this thread alone: on Linux, niceness is per thread. The thread runs on even if the system refuses.
fn lower_priority() {
    let now = rustix::process::getpriority_process(None).unwrap_or(0);
    let _ = rustix::process::setpriority_process(None, now.max(BACKGROUND_NICENESS));
}

/// The text of a panic: `panic!` carries a `&str` or a `String`, `panic_any` any type.
fn message_of(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "(a panic without a text)".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_worker_has_its_name_and_returns_its_result() {
        let worker = Worker::spawn("decode-3", |_| std::thread::current().name().map(str::to_owned)).unwrap();
        assert_eq!(worker.name(), "decode-3");
        assert_eq!(worker.join().unwrap().as_deref(), Some("decode-3"));
    }

    #[test]
    fn a_background_thread_lowers_only_its_own_priority() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let worker = Worker::spawn_background("background", move |_| niceness()).unwrap();
        assert_eq!((worker.join().unwrap(), niceness()), (BACKGROUND_NICENESS.max(before), before));
    }

    #[test]
    fn stopping_ends_a_pause_at_once() {
        // The pause would outlast the test run, so `join` returns only if `stop` ended it.
        let worker = Worker::spawn("pause", |stop| stop.wait_timeout(Duration::MAX)).unwrap();
        worker.stop();
        assert!(worker.join().unwrap());
    }

    #[test]
    fn dropping_stops_and_waits() {
        let (ended, end) = sync_channel(1);
        let worker = Worker::spawn("dropped", move |stop| {
            stop.wait_timeout(Duration::MAX);
            ended.send(()).unwrap();
        });
        drop(worker);
        // Not `recv`: the thread must have ended by now, not soon.
        assert!(end.try_recv().is_ok());
    }

    #[test]
    fn joining_does_not_stop() {
        let (send, received) = sync_channel::<()>(0);
        let worker = Worker::spawn("patient", move |stop| {
            received.recv().unwrap();
            stop.is_raised()
        })
        .unwrap();
        assert!(!worker.is_finished());
        send.send(()).unwrap();
        assert!(!worker.join().unwrap());
    }

    #[test]
    fn a_panic_is_an_error_with_name_and_text() {
        let literal: Worker = Worker::spawn("literal", |_| panic!("no slot")).unwrap();
        let built: Worker = Worker::spawn("built", |_| panic!("no slot {}", 3)).unwrap();
        let other: Worker = Worker::spawn("other", |_| std::panic::panic_any(3)).unwrap();
        let texts = [literal, built, other].map(|worker| worker.join().unwrap_err().to_string());
        assert_eq!(
            texts,
            [
                "thread literal panicked: no slot",
                "thread built panicked: no slot 3",
                "thread other panicked: (a panic without a text)",
            ]
        );
    }

    #[test]
    fn dropping_a_worker_that_panicked_is_quiet() {
        drop(Worker::<()>::spawn("gone", |_| panic!("ignored")).unwrap());
    }
}
