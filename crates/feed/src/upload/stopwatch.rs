//! Times of batches by the devices' clocks, read without waiting.
//!
//! A stage starts a watch for a batch and queues its timers around the batch's work. With every later batch it takes the times
//! of watches that have stopped. There are as many watches as batches can be in flight: a device far behind its host is timed
//! as well.

use std::collections::VecDeque;

use tandem_device::DeviceError;

/// A fixed number of watches `T`, reused in turn.
pub(crate) struct Stopwatches<T> {
    free: Vec<T>,
    /// Oldest first. They stop in this order.
    running: VecDeque<(u64, T)>,
}

impl<T> Stopwatches<T> {
    pub(crate) fn new(count: u64, make: impl Fn() -> Result<T, DeviceError>) -> Result<Self, DeviceError> {
        let free = (0..count.max(1)).map(|_| make()).collect::<Result<Vec<T>, _>>()?;
        Ok(Stopwatches { running: VecDeque::with_capacity(free.len()), free })
    }

    /// A watch for `batch`. If all are running, the oldest, whose time is lost.
    pub(crate) fn start(&mut self, batch: u64) -> &T {
        let watch = self.free.pop().or_else(|| self.running.pop_front().map(|(_, watch)| watch));
        let Some(watch) = watch else { unreachable!("there is at least one watch") };
        self.running.push_back((batch, watch));
        &self.running[self.running.len() - 1].1
    }

    /// The oldest batch whose watch has stopped, and its times by `read`, which returns none for a running watch.
    pub(crate) fn take<R>(
        &mut self,
        read: impl FnOnce(&T) -> Result<Option<R>, DeviceError>,
    ) -> Result<Option<(u64, R)>, DeviceError> {
        let Some((batch, watch)) = self.running.front() else { return Ok(None) };
        let Some(times) = read(watch)? else { return Ok(None) };
        let batch = *batch;
        self.free.extend(self.running.pop_front().map(|(_, watch)| watch));
        Ok(Some((batch, times)))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Watches that stop when a test sets them.
    type Watches = Stopwatches<Cell<Option<u64>>>;

    fn take(watches: &mut Watches) -> Option<(u64, u64)> {
        watches.take(|watch| Ok(watch.get())).unwrap()
    }

    fn start(watches: &mut Watches, batch: u64) {
        watches.start(batch).set(None);
    }

    #[test]
    fn times_are_taken_in_order_once_they_are_known() {
        let mut watches = Watches::new(3, || Ok(Cell::new(None))).unwrap();
        assert_eq!(take(&mut watches), None);
        (0..2).for_each(|batch| start(&mut watches, batch));
        watches.running[1].1.set(Some(11));
        assert_eq!(take(&mut watches), None, "the first is still running");
        watches.running[0].1.set(Some(10));
        assert_eq!([(); 3].map(|()| take(&mut watches)), [Some((0, 10)), Some((1, 11)), None]);
    }

    #[test]
    fn the_oldest_watch_is_reused_when_all_are_running() {
        let mut watches = Watches::new(2, || Ok(Cell::new(None))).unwrap();
        (0..5).for_each(|batch| start(&mut watches, batch));
        watches.running.iter().for_each(|(batch, watch)| watch.set(Some(10 * batch)));
        assert_eq!([(); 3].map(|()| take(&mut watches)), [Some((3, 30)), Some((4, 40)), None]);
    }
}
