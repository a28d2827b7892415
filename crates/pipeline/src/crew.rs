//! Threads that end together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{StopFlag, Worker, WorkerError};

/// Workers under one name and one stop flag. Whoever lets go of a crew, by [`join`](Crew::join) or by dropping it,
/// waits until every one of its threads has ended.
///
/// A panic in one of them stops the others: half a crew would wait for the missing one. Work that may panic and should
/// not end the crew is caught inside the body.
pub struct Crew<T = ()> {
    name: String,
    orders: Arc<Orders>,
    workers: Vec<Worker<T>>,
}

/// What the members of a crew have in common.
struct Orders {
    stop: StopFlag,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// What else is to be done when the crew is stopped.
    on_stop: Vec<Box<dyn FnOnce() + Send>>,
    /// The thread that panicked first.
    first_panic: Option<String>,
}

impl<T: Send + 'static> Crew<T> {
    /// Starts a thread named `{crew}-{name}` that runs `body`, which is told to stop as that of a [`Worker`] is; the
    /// flag is the whole crew's. On a crew that was stopped it is up from the start.
    ///
    /// Fails when the system has no thread left to give; the others go on.
    pub fn spawn<F>(&mut self, name: impl AsRef<str>, body: F) -> Result<(), WorkerError>
    where
        F: FnOnce(&StopFlag) -> T + Send + 'static,
    {
        let name = format!("{}-{}", self.name, name.as_ref());
        let alarm = Alarm { orders: Arc::clone(&self.orders), name: name.clone() };
        let worker = Worker::spawn_with(name, self.orders.stop.clone(), move |stop| {
            let _alarm = alarm;
            body(stop)
        })?;
        self.workers.push(worker);
        Ok(())
    }
}

impl<T> Crew<T> {
    /// A crew without members.
    pub fn new(name: impl Into<String>) -> Self {
        let orders = Orders { stop: StopFlag::new(), told: Mutex::default() };
        Self { name: name.into(), orders: Arc::new(orders), workers: Vec::new() }
    }

    /// The crew's name, with which its threads' names begin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many threads were started.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Has `end` called once when the crew is stopped, by whatever way, after the flag went up; at once when it has
    /// been stopped already.
    ///
    /// The flag does not reach a thread that waits on a link or on a ring: closing them does, and this is the place to
    /// say so. `end` must neither wait nor panic, and may run on any thread.
    pub fn on_stop(&self, end: impl FnOnce() + Send + 'static) {
        self.orders.lock().on_stop.push(Box::new(end));
        if self.orders.stop.is_raised() {
            self.orders.stop();
        }
    }

    /// Tells every thread to stop. Does not wait for them.
    pub fn stop(&self) {
        self.orders.stop();
    }

    /// Whether every body has returned or panicked, so that [`join`](Crew::join) will not wait.
    pub fn is_finished(&self) -> bool {
        self.workers.iter().all(Worker::is_finished)
    }

    /// Waits for the threads to end by themselves and takes what they made, in the order they were started. To end
    /// them early, [`stop`](Crew::stop) first.
    ///
    /// Fails with the panic that came first; even then every thread has ended.
    pub fn join(mut self) -> Result<Vec<T>, WorkerError> {
        let mut made = Vec::with_capacity(self.workers.len());
        let mut panics = Vec::new();
        for worker in self.workers.drain(..) {
            match worker.join() {
                Ok(value) => made.push(value),
                Err(panic) => panics.push(panic),
            }
        }
        let first = self.orders.lock().first_panic.take();
        match panics.iter().position(|panic| Some(panic.thread()) == first.as_deref()) {
            Some(index) => Err(panics.swap_remove(index)),
            // No alarm, no panic. If there ever were one, it would not be lost.
            None => panics.into_iter().next().map_or(Ok(made), Err),
        }
    }
}

impl<T> Drop for Crew<T> {
    fn drop(&mut self) {
        // All are told before the first is waited for; each worker joins as it is dropped.
        if !self.workers.is_empty() {
            self.orders.stop();
        }
    }
}

impl Orders {
    fn stop(&self) {
        self.stop.raise();
        // Outside the lock: it is other people's code.
        let on_stop = std::mem::take(&mut self.lock().on_stop);
        on_stop.into_iter().for_each(|end| end());
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        // Nothing that can panic runs under this lock.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lies in every thread of a crew and goes off when the thread panics.
struct Alarm {
    orders: Arc<Orders>,
    name: String,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.orders.lock().first_panic.get_or_insert_with(|| std::mem::take(&mut self.name));
            self.orders.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;
    use crate::link;

    #[test]
    fn a_crew_has_names_and_hands_over_what_was_made_in_order() {
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
        // Not `recv`: the threads must be over by now, not soon.
        assert_eq!(end.try_iter().count(), 2);
    }

    #[test]
    fn the_first_panic_comes_out_and_stops_the_rest() {
        let mut crew = Crew::new("crew");
        // Started first, joined first, and panics second: only after the flag is up.
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
    fn stopping_reaches_a_thread_that_waits_on_a_link() {
        // The test keeps a sender: without the closing, the thread would wait for it and `drop` for the thread.
        let (sender, mut receiver) = link::<u8>("a-b", 8);
        let mut crew = Crew::new("crew");
        let handle = sender.handle();
        crew.on_stop(move || handle.close());
        crew.spawn("receiver", move |_| receiver.recv().is_none()).unwrap();
        drop(crew);
        assert!(sender.reserve(1).is_err());
    }

    #[test]
    fn what_is_to_be_done_at_the_stop_is_done_once_and_also_when_said_late() {
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
