//! Streams, which run work in order on one card, and events, which synchronise streams with each other and the host.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tandem_events::TimeSpan;

use crate::arena::View;
use crate::device::{Device, LoadedKernel, OpenDevice};
use crate::driver::{CopyPath, EventId, PeerCall, StreamId};
use crate::error::DeviceError;
use crate::gemm::{self, Gemm};
use crate::kernel::{Arg, Grid, KernelArgs, check};
use crate::pinned::Pinned;

/// A queue of work on one card, run in the order it was queued.
pub struct Stream {
    pub(crate) open: Arc<OpenDevice>,
    pub(crate) id: StreamId,
    /// Unique: a driver may reuse the handle of a destroyed stream.
    pub(crate) serial: u64,
    /// Whether work is captured instead of run.
    pub(crate) capturing: AtomicBool,
    /// Whether another library created it and destroys it.
    pub(crate) is_foreign: bool,
}

/// A point in a stream that other streams and the host can wait for.
pub struct Event {
    pub(crate) open: Arc<OpenDevice>,
    pub(crate) id: EventId,
}

impl Stream {
    /// The card it runs on.
    pub fn device(&self) -> Device {
        Device { open: self.open.clone() }
    }

    /// Makes the stream wait for the latest record of `event`. The host does not wait.
    ///
    /// `name` names the wait: tests skip each wait in turn and must see wrong data.
    pub fn wait(&self, event: &Event, name: &'static str) -> Result<(), DeviceError> {
        self.outside_capture("an event")?;
        let passed = self.open.machine.faults().pass(name);
        self.delay(passed.delay_ns)?;
        if passed.is_skipped {
            return Ok(());
        }
        self.open.driver().wait(self.open.card, self.id, event.id)
    }

    /// Records `event` at this point of the stream.
    pub fn record(&self, event: &Event) -> Result<(), DeviceError> {
        self.outside_capture("an event")?;
        self.open.driver().record(self.open.card, self.id, event.id)
    }

    /// Copies `range` of pinned memory to the device. The bytes are read when the copy runs, not now.
    pub fn upload(&self, from: &Pinned, range: Range<u64>, to: View<'_>) -> Result<(), DeviceError> {
        self.up(from, range, to, |path| self.copy_along(path))
    }

    /// A small [`upload`](Stream::upload) that never queues behind a bulk copy: on NVIDIA cards a kernel copies it.
    pub fn upload_small(&self, from: &Pinned, range: Range<u64>, to: View<'_>) -> Result<(), DeviceError> {
        self.up(from, range, to, |path| self.copy_small_along(path))
    }

    fn up(
        &self,
        from: &Pinned,
        range: Range<u64>,
        to: View<'_>,
        copy: impl FnOnce(CopyPath) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.outside_capture("a copy from the host")?;
        let part = from.span().part(range.start, range.end - range.start);
        assert_eq!(part.bytes, to.bytes(), "upload between parts of different length");
        self.owns(to);
        from.read_by(self, || copy(CopyPath::HostToDevice { from: part, to: to.address() }))
    }

    /// Copies device memory to `range` of pinned memory. The host may read it after waiting for an event.
    pub fn download(&self, from: View<'_>, to: &mut Pinned, range: Range<u64>) -> Result<(), DeviceError> {
        self.down(from, to, range, |path| self.copy_along(path))
    }

    /// A small [`download`](Stream::download), like [`upload_small`](Stream::upload_small).
    pub fn download_small(&self, from: View<'_>, to: &mut Pinned, range: Range<u64>) -> Result<(), DeviceError> {
        self.down(from, to, range, |path| self.copy_small_along(path))
    }

    fn down(
        &self,
        from: View<'_>,
        to: &mut Pinned,
        range: Range<u64>,
        copy: impl FnOnce(CopyPath) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.outside_capture("a copy to the host")?;
        let part = to.span().part(range.start, range.end - range.start);
        assert_eq!(part.bytes, from.bytes(), "download between parts of different length");
        self.owns(from);
        to.written_by(self, || copy(CopyPath::DeviceToHost { from: from.address(), to: part }))
    }

    /// Copies within the card.
    pub fn copy(&self, from: View<'_>, to: View<'_>) -> Result<(), DeviceError> {
        assert_eq!(from.bytes(), to.bytes(), "copy between parts of different length");
        self.owns(from);
        self.owns(to);
        self.copy_along(CopyPath::WithinDevice { from: from.address(), to: to.address(), bytes: from.bytes() })
    }

    /// Copies from one card to another.
    pub(crate) fn copy_peer(&self, from: View<'_>, to: View<'_>, call: PeerCall) -> Result<(), DeviceError> {
        self.outside_capture("a copy between cards")?;
        assert_eq!(from.bytes(), to.bytes(), "copy between parts of different length");
        self.copy_along(CopyPath::Peer { from: from.address(), to: to.address(), bytes: from.bytes(), call })
    }

    /// Panics if the memory is on another card, which is a bug in the caller.
    pub(crate) fn owns(&self, view: View<'_>) {
        let (card, own) = (view.address().card, self.open.card);
        assert_eq!(card, own, "memory of GPU {card} on a stream of GPU {own}");
    }

    fn copy_along(&self, path: CopyPath) -> Result<(), DeviceError> {
        self.open.driver().copy(self.open.card, self.id, path)
    }

    fn copy_small_along(&self, path: CopyPath) -> Result<(), DeviceError> {
        self.open.driver().copy_small(self.open.card, self.id, path)
    }

    /// Sets every byte.
    pub fn fill(&self, at: View<'_>, value: u8) -> Result<(), DeviceError> {
        self.owns(at);
        self.open.driver().fill(self.open.card, self.id, at.address(), at.bytes(), value)
    }

    /// Runs a kernel with the arguments that [`kernel_args!`](crate::kernel_args) declared for it.
    pub fn launch<'v>(
        &self,
        loaded: &LoadedKernel,
        grid: Grid,
        args: impl KernelArgs<View<'v>>,
    ) -> Result<(), DeviceError> {
        self.launch_args(loaded, grid, &loaded.kernel.bind_views(args)?)
    }

    /// Runs a kernel. Its arguments are checked against its parameters before anything is queued.
    pub fn launch_args(&self, loaded: &LoadedKernel, grid: Grid, args: &[Arg<'_>]) -> Result<(), DeviceError> {
        if !Arc::ptr_eq(&loaded.open, &self.open) {
            let problem = format!("loaded on GPU {}, launched on GPU {}", loaded.open.card, self.open.card);
            return Err(DeviceError::Arguments { kernel: loaded.kernel.name, problem });
        }
        let raw = check(loaded.kernel, self.open.card, args)?;
        self.open.driver().launch(self.open.card, self.id, (loaded.kernel, loaded.id), grid, &raw)
    }

    /// Multiplies matrices: `c = alpha · op(a) · op(b)`, see [`Gemm`]. It is checked before anything is queued; views may
    /// be longer than the GEMM needs.
    ///
    /// `workspace` is scratch memory for cards; the CPU and simulated cards do not use it. All GEMMs of one stream may
    /// share it. Its length affects the choice of algorithm, and so the last bits: [`Gemm::WORKSPACE_BYTES`] suits all
    /// sizes. Without a workspace there are fewer algorithms to choose from.
    pub fn gemm(
        &self,
        gemm: &Gemm,
        a: View<'_>,
        b: View<'_>,
        c: View<'_>,
        bias: Option<View<'_>>,
        workspace: Option<View<'_>>,
    ) -> Result<(), DeviceError> {
        let raw = gemm::check(gemm, self.open.card, [a, b, c], bias, workspace)?;
        self.open.driver().gemm(self.open.card, self.id, &raw)
    }

    /// Fault injection: queues a kernel that faults.
    ///
    /// `Ok` means that it was queued. Once it has run, every call on the card, on any stream and by any role, returns
    /// [`DeviceError::Lost`], and work queued behind it does not run. A real card stays lost until this process has ended;
    /// then the driver frees its memory. On the CPU this is refused.
    pub fn trap(&self) -> Result<(), DeviceError> {
        self.outside_capture("a trap")?;
        self.open.driver().trap(self.open.card, self.id)
    }

    /// Blocks the host until all work queued so far is done. For set-up and tests; the step loop never calls it.
    pub fn drain(&self) -> Result<(), DeviceError> {
        let end = self.device().event()?;
        self.record(&end)?;
        self.open.driver().synchronize(self.open.card, end.id)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_foreign {
            self.open.driver().destroy_stream(self.open.card, self.id);
        }
    }
}

impl Event {
    /// Blocks the host until the latest record of the event has been reached. An event that was never recorded counts as
    /// reached. `name` names the wait, as in [`Stream::wait`].
    pub fn synchronize(&self, name: &'static str) -> Result<(), DeviceError> {
        if self.open.machine.faults().skips(name) {
            return Ok(());
        }
        self.open.driver().synchronize(self.open.card, self.id)
    }

    /// [`synchronize`](Event::synchronize) for `longest` at most; `false` if the event was not reached.
    pub fn synchronize_within(&self, longest: Duration) -> Result<bool, DeviceError> {
        self.open.driver().synchronize_within(self.open.card, self.id, longest)
    }

    /// The same with a name, as in [`synchronize`](Event::synchronize).
    pub fn synchronize_named_within(&self, name: &'static str, longest: Duration) -> Result<bool, DeviceError> {
        if self.open.machine.faults().skips(name) {
            return Ok(true);
        }
        self.synchronize_within(longest)
    }

    /// Whether the latest record of the event has been reached.
    pub fn reached(&self) -> Result<bool, DeviceError> {
        self.open.driver().reached(self.open.card, self.id)
    }

    /// Nanoseconds on the device from `earlier` to this. Both must be timers that have been reached.
    pub fn ns_since(&self, earlier: &Event) -> Result<u64, DeviceError> {
        self.open.driver().elapsed_ns(self.open.card, earlier.id, self.id)
    }

    /// The interval from `began` to this. Both must be timers that have been reached.
    pub fn span_since(&self, began: &Event) -> Result<TimeSpan, DeviceError> {
        Ok(TimeSpan { began_ns: began.reached_at_ns()?, ns: self.ns_since(began)? })
    }

    /// When this timer was reached, on the clock of [`Machine::now_ns`](crate::Machine::now_ns). It must have been reached.
    pub fn reached_at_ns(&self) -> Result<u64, DeviceError> {
        self.open.driver().reached_at_ns(self.open.card, self.id)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.open.driver().destroy_event(self.open.card, self.id);
    }
}
