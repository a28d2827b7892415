//! Threads that stay on some cores: near the memory and the devices that they use.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::WorkerError;
use crate::worker::on_own_thread;

/// Cores that threads are to run on, by the numbers of the system. Never empty.
///
/// A thread is bound to those of them that it may use anyway: what a container or `taskset` forbids stays forbidden. If none
/// of them is left, the thread runs where it could before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSet {
    cores: Vec<usize>,
}

impl CoreSet {
    /// These cores; `None` if there are none.
    pub fn new(cores: &[usize]) -> Option<CoreSet> {
        (!cores.is_empty()).then(|| CoreSet { cores: cores.to_vec() })
    }

    /// Calls `work` on a thread named `name` that is bound to `cores`, and returns its result; without cores, on the calling
    /// thread. Memory that `work` touches first is then near these cores.
    ///
    /// Fails when the system cannot start another thread. A panic of `work` is passed on.
    pub fn run<T: Send>(
        cores: Option<&CoreSet>,
        name: &str,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, WorkerError> {
        let Some(cores) = cores else { return Ok(work()) };
        on_own_thread(name, || {
            cores.bind();
            work()
        })
    }

    /// Binds the calling thread. Threads that it starts later inherit this.
    pub(crate) fn bind(&self) {
        // Placement only saves time: where the system refuses, the thread runs on as before.
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut chosen = CpuSet::new();
        let usable = self.cores.iter().copied().filter(|&core| core < CpuSet::MAX_CPU && allowed.is_set(core));
        usable.for_each(|core| chosen.set(core));
        if chosen.count() > 0 {
            let _ = sched_setaffinity(None, &chosen);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::Crew;

    /// The cores that the calling thread may use.
    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
    }

    #[test]
    fn work_runs_on_its_cores_and_leaves_the_caller_where_it_is() {
        let before = allowed();
        for &core in &before {
            let cores = CoreSet::new(&[core]);
            assert_eq!(CoreSet::run(cores.as_ref(), "bound", allowed).unwrap(), [core]);
            let name = CoreSet::run(cores.as_ref(), "bound", || thread::current().name().map(str::to_owned));
            assert_eq!(name.unwrap().as_deref(), Some("bound"));
        }
        assert_eq!(allowed(), before);
    }

    #[test]
    fn without_cores_work_runs_on_the_calling_thread() {
        assert_eq!(CoreSet::new(&[]), None);
        let caller = thread::current().id();
        assert_eq!(CoreSet::run(None, "unused", || thread::current().id()).unwrap(), caller);
    }

    #[test]
    fn cores_that_the_thread_may_not_use_are_left_out() {
        let before = allowed();
        let forbidden = (0..2 * CpuSet::MAX_CPU).find(|core| !before.contains(core)).unwrap();
        let only = CoreSet::new(&[forbidden, 5 * CpuSet::MAX_CPU]).unwrap();
        assert_eq!(CoreSet::run(Some(&only), "none is left", allowed).unwrap(), before);
        let some = CoreSet::new(&[forbidden, before[0]]).unwrap();
        assert_eq!(CoreSet::run(Some(&some), "one is left", allowed).unwrap(), [before[0]]);
        // A thread that is bound is not bound to more cores again.
        let both = CoreSet::new(&before).unwrap();
        let first = CoreSet::new(&before[..1]).unwrap();
        let widened = || CoreSet::run(Some(&both), "wider", allowed).unwrap();
        assert_eq!(CoreSet::run(Some(&first), "narrow", widened).unwrap(), [before[0]]);
    }

    #[test]
    fn the_threads_of_a_crew_run_on_its_cores() {
        for &core in &allowed() {
            let mut crew = Crew::new("bound").on_cores(CoreSet::new(&[core]));
            (0..3).for_each(|number| crew.spawn(number.to_string(), |_| allowed()).unwrap());
            assert_eq!(crew.join().unwrap(), vec![vec![core]; 3]);
        }
        let mut free = Crew::new("free").on_cores(None);
        free.spawn("0", |_| allowed()).unwrap();
        assert_eq!(free.join().unwrap(), [allowed()]);
    }

    #[test]
    #[should_panic(expected = "the cause")]
    fn a_panic_is_passed_on() {
        let cores = CoreSet::new(&allowed());
        let _ = CoreSet::run(cores.as_ref(), "panics", || panic!("the cause"));
    }
}
