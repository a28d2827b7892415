//! CPU time of this process.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads since the process started.
pub(crate) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_with_the_work_of_any_thread() {
        let before = cpu_ns();
        let work = || (0..20_000_000_u64).fold(0, |sum: u64, n| std::hint::black_box(sum.wrapping_add(n)));
        let worked = std::thread::scope(|scope| scope.spawn(work).join());
        assert!(worked.is_ok() && cpu_ns() > before + 100_000);
    }
}
