//! A group of threads that stop together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{CoreSet, StopFlag, Worker, WorkerError};

/// Workers with a common name and stop flag. Both [`join`](Crew::join) and dropping a crew wait until every thread has
/// ended.
///
/// A panic in one thread stops the others, which would otherwise wait for it forever. A body whose panics should not
/// stop the crew must catch them.
pub struct Crew<T = ()> {
    name: String,
    cores: Option<CoreSet>,
    shared: Arc<Shared>,
    workers: Vec<Worker<T>>,
}

/// The state that the threads of a crew share.
struct Shared {
    stop: StopFlag,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Called when the crew is stopped.
    on_stop: Vec<Box<dyn FnOnce() + Send>>,
    /// The thread that panicked first.
    first_panic: Option<String>,
}

impl<T: Send + 'static> Crew<T> {
    /// Starts a thread named `{crew}-{name}` that runs `body`. `body` gets the crew's stop flag and must check it as
    /// that of a [`Worker`] does. On a stopped crew the flag is raised from the start.
    ///
    /// Fails when the system cannot start another thread; the other threads continue.
    pub fn spawn<F>(&mut self, name: impl AsRef<str>, body: F) -> Result<(), WorkerError>
    where
        F: FnOnce(&StopFlag) -> T + Send + 'static,
    {
        let name = format!("{}-{}", self.name, name.as_ref());
        let on_panic = StopOnPanic { shared: Arc::clone(&self.shared), name: name.clone() };
        let cores = self.cores.clone();
        let worker = Worker::spawn_with(name, self.shared.stop.clone(), move |stop| {
            let _on_panic = on_panic;
            cores.iter().for_each(CoreSet::bind);
            body(stop)
        })?;
        self.workers.push(worker);
        Ok(())
    }
}

impl<T> Crew<T> {
    /// A crew without threads.
    pub fn new(name: impl Into<String>) -> Self {
        let shared = Shared { stop: StopFlag::new(), state: Mutex::default() };
        Self { name: name.into(), cores: None, shared: Arc::new(shared), workers: Vec::new() }
    }

    /// The same with its threads on `cores`, if there are any: see [`CoreSet`].
    pub fn on_cores(mut self, cores: Option<CoreSet>) -> Self {
        self.cores = cores;
        self
    }

    /// The crew's name, the prefix of its threads' names.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of threads that were started.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether no thread was started.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Registers `callback` to be called once when the crew is stopped for any reason, after the flag was raised. If the
    /// crew has been stopped already, it is called at once.
    ///
    /// The flag does not wake a thread that waits on a ring; closing the ring does. Register that here. `callback` must
    /// neither wait nor panic, and may run on any thread.
    pub fn on_stop(&self, callback: impl FnOnce() + Send + 'static) {
        self.shared.lock().on_stop.push(Box::new(callback));
        if self.shared.stop.is_raised() {
            self.shared.stop();
        }
    }

    /// Asks every thread to stop. Does not wait for them.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Whether every body has returned or panicked, so that [`join`](Crew::join) will not wait.
    pub fn is_finished(&self) -> bool {
        self.workers.iter().all(Worker::is_finished)
    }

    /// Waits for the threads to return and takes their results, in the order they were started. To end them early,
    /// [`stop`](Crew::stop) first.
    ///
    /// Fails with the panic that came first; even then every thread has ended.
    pub fn join(mut self) -> Result<Vec<T>, WorkerError> {
        let mut results = Vec::with_capacity(self.workers.len());
        let mut panics = Vec::new();
        for worker in self.workers.drain(..) {
            match worker.join() {
                Ok(result) => results.push(result),
                Err(panic) => panics.push(panic),
            }
        }
        let first = self.shared.lock().first_panic.take();
        match panics.iter().position(|panic| Some(panic.thread()) == first.as_deref()) {
            Some(index) => Err(panics.swap_remove(index)),
            // `StopOnPanic` notes every panic, so there is none here. If there were one, it would not be lost.
            None => panics.into_iter().next().map_or(Ok(results), Err),
        }
    }
}

impl<T> Drop for Crew<T> {
    fn drop(&mut self) {
        // Ask all threads to stop before joining the first; each worker joins as it is dropped.
        if !self.workers.is_empty() {
            self.shared.stop();
        }
    }
}

impl Shared {
    fn stop(&self) {
        self.stop.raise();
        // Callbacks are the caller's code: they run outside the lock.
        let on_stop = std::mem::take(&mut self.lock().on_stop);
        on_stop.into_iter().for_each(|callback| callback());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A drop guard in every thread of a crew: stops the crew when the thread panics.
struct StopOnPanic {
    shared: Arc<Shared>,
    name: String,
}

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.lock().first_panic.get_or_insert_with(|| std::mem::take(&mut self.name));
            self.shared.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;
    use crate::{RingSlot, ring};

    #[test]
    fn a_crew_names_its_threads_and_returns_their_results_in_order() {
        let mut crew = Crew::new("load");
        for number in 0..3 {
            crew.spawn(number.to_string(), |_| std::thread::current().name().map(str::to_owned)).unwrap();
        }
        assert_eq!((crew.name(), crew.len()), ("load", 3));
        let names: Vec<_> = crew.join().unwrap().into_iter().flatten().collect();
        assert_eq!(names, ["load-0", "load-1", "load-2"]);
    }

    #[test]
    fn one_flag_ends_every_pause() {
        // The pauses would outlast the test run.
        let mut crew = Crew::new("pause");
        for number in 0..3 {
            crew.spawn(number.to_string(), |stop| stop.wait_timeout(Duration::MAX)).unwrap();
        }
        assert!(!crew.is_finished());
        crew.stop();
        assert_eq!(crew.join().unwrap(), [true; 3]);
    }

    #[test]
    fn dropping_stops_and_waits_for_all() {
        let (ended, end) = sync_channel(2);
        let mut crew = Crew::new("dropped");
        for number in 0..2 {
            let ended = ended.clone();
            let body = move |stop: &StopFlag| {
                stop.wait_timeout(Duration::MAX);
                ended.send(()).unwrap();
            };
            crew.spawn(number.to_string(), body).unwrap();
        }
        drop(crew);
        // Not `recv`: the threads must have ended by now, not soon.
        assert_eq!(end.try_iter().count(), 2);
    }

    #[test]
    fn the_first_panic_comes_out_and_stops_the_rest() {
        let mut crew = Crew::new("crew");
        // Started first, joined first, but panics second: only after the flag was raised.
        crew.spawn("late", |stop| {
            stop.wait_timeout(Duration::MAX);
            panic!("because of the other");
        })
        .unwrap();
        crew.spawn("early", |_| panic!("the cause")).unwrap();
        crew.spawn("calm", |stop| {
            stop.wait_timeout(Duration::MAX);
        })
        .unwrap();
        assert_eq!(crew.join().unwrap_err().to_string(), "thread crew-early panicked: the cause");
    }

    #[test]
    fn stopping_reaches_a_thread_that_waits_on_a_ring() {
        // The filler stays alive: unless the ring is closed, the thread waits for it and `drop` for the thread.
        let (filler, taker) = ring::<_, (), _>("a-b", [RingSlot { memory: (), written: (), freed: () }]);
        let mut crew = Crew::new("crew");
        let handle = filler.handle();
        crew.on_stop(move || handle.close());
        crew.spawn("taker", move |_| taker.take().is_none()).unwrap();
        drop(crew);
        assert!(filler.take().is_err());
    }

    #[test]
    fn a_stop_callback_runs_once_also_when_registered_after_the_stop() {
        let (done, all) = sync_channel(4);
        let mut crew: Crew = Crew::new("crew");
        crew.spawn("idle", |_| ()).unwrap();
        let early = done.clone();
        crew.on_stop(move || early.send("early").unwrap());
        crew.stop();
        crew.stop();
        crew.on_stop(move || done.send("late").unwrap());
        assert!(crew.join().is_ok());
        assert_eq!(all.iter().collect::<Vec<_>>(), ["early", "late"]);
    }
}
