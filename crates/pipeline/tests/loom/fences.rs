//! The ring's fences: with every wait in place there is no torn read in any interleaving; without any one of them there
//! is.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use loom::thread;
use tandem_pipeline::{Filler, Taker, ring};

use crate::device::{Fence, LoomStream, Memory, Work, slots};
use crate::explore;

type Fill = Filler<Memory, usize, Fence>;
type Take = Taker<Memory, usize, Fence>;

/// How a model treats the fences.
#[derive(Clone, Copy, PartialEq)]
enum Waits {
    All,
    NotForFreed,
    NotForWritten,
}

/// Whether some interleaving reads torn data.
fn tears(preemptions: usize, model: impl Fn(Fill, Take) + Sync + Send + 'static, num_slots: usize) -> bool {
    let torn = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&torn);
    explore(preemptions, move || {
        let (filler, taker) = ring("model", slots(num_slots, &torn));
        model(filler, taker);
    });
    seen.load(Ordering::Relaxed)
}

/// Waits on the host.
fn wait(fence: &Fence) -> Result<(), Infallible> {
    fence.last().wait();
    Ok(())
}

/// Work done by the host itself is done when it is recorded.
fn done(fence: &Fence) -> Result<(), Infallible> {
    fence.record().fire();
    Ok(())
}

fn skip(_: &Fence) -> Result<(), Infallible> {
    Ok(())
}

/// The host fills; a device reads the leased slot at any later time, as in an upload from pinned memory.
fn host_fills(waits: Waits, num_batches: usize) -> impl Fn(Fill, Take) + Sync + Send + 'static {
    move |filler, taker| {
        let (stream, device) = LoomStream::new();
        let leasing = thread::spawn(move || {
            for expected in 1.. {
                let Some(ready) = taker.take() else { break };
                let Ok(leased) = ready.lease(wait);
                assert_eq!(*leased.payload(), expected, "slots come in the order of publishing");
                stream.queue(Work::Read(leased.memory().clone(), expected));
                let Ok(()) = leased.release(|freed| stream.record(freed));
            }
            stream.queue(Work::End);
        });
        for value in 1..=num_batches {
            let free = filler.take().unwrap();
            let Ok(filling) = free.claim(if waits == Waits::NotForFreed { skip } else { wait });
            filling.memory().write(value);
            let Ok(()) = filling.publish(value, done);
        }
        drop(filler);
        leasing.join().unwrap();
        device.join().unwrap();
    }
}

/// A device fills at any later time; the host reads, as in a download of results.
fn device_fills(waits: Waits, num_batches: usize) -> impl Fn(Fill, Take) + Sync + Send + 'static {
    move |filler, taker| {
        let (stream, device) = LoomStream::new();
        let filling = thread::spawn(move || {
            for value in 1..=num_batches {
                let Ok(filling) = filler.take().unwrap().claim(wait);
                stream.queue(Work::Write(filling.memory().clone(), value));
                let Ok(()) = filling.publish(value, |written| stream.record(written));
            }
            stream.queue(Work::End);
        });
        for expected in 1..=num_batches {
            let ready = taker.take().unwrap();
            let Ok(leased) = ready.lease(if waits == Waits::NotForWritten { skip } else { wait });
            leased.memory().read(expected);
            let Ok(()) = leased.release(done);
        }
        assert!(taker.take().is_none());
        filling.join().unwrap();
        device.join().unwrap();
    }
}

/// Two streams fill and read, and the host waits for neither: it only makes one stream wait for the other.
fn streams_meet(waits: Waits, num_batches: usize) -> impl Fn(Fill, Take) + Sync + Send + 'static {
    move |filler, taker| {
        let (write, writing) = LoomStream::new();
        let (read, reading) = LoomStream::new();
        // One host thread serves both ends: interleavings of two are explored above, and here they would be too many.
        for value in 1..=num_batches {
            let skip_freed = waits == Waits::NotForFreed;
            let Ok(filling) =
                filler.take().unwrap().claim(|freed| if skip_freed { skip(freed) } else { write.wait(freed) });
            write.queue(Work::Write(filling.memory().clone(), value));
            let Ok(()) = filling.publish(value, |written| write.record(written));

            let skip_written = waits == Waits::NotForWritten;
            let Ok(leased) =
                taker.take().unwrap().lease(|written| if skip_written { skip(written) } else { read.wait(written) });
            read.queue(Work::Read(leased.memory().clone(), value));
            let Ok(()) = leased.release(|freed| read.record(freed));
        }
        write.queue(Work::End);
        read.queue(Work::End);
        writing.join().unwrap();
        reading.join().unwrap();
    }
}

#[test]
fn a_device_that_reads_late_reads_no_torn_data() {
    assert!(!tears(3, host_fills(Waits::All, 3), 2));
}

#[test]
fn a_device_that_writes_late_is_waited_for() {
    assert!(!tears(3, device_fills(Waits::All, 3), 2));
}

#[test]
fn two_streams_meet_through_the_fences_alone() {
    assert!(!tears(3, streams_meet(Waits::All, 3), 2));
}

#[test]
fn to_skip_the_wait_for_freed_is_a_race() {
    assert!(tears(3, host_fills(Waits::NotForFreed, 2), 1));
    assert!(tears(3, streams_meet(Waits::NotForFreed, 3), 2));
}

#[test]
fn to_skip_the_wait_for_written_is_a_race() {
    assert!(tears(3, device_fills(Waits::NotForWritten, 1), 1));
    assert!(tears(3, streams_meet(Waits::NotForWritten, 1), 1));
}
