//! Operations on an open card: memory, streams, events, copies, launches.

use std::ffi::c_void;
use std::ptr;
use std::sync::PoisonError;
use std::time::Duration;

use super::api::{self, Access, Code, Handle};
use super::contexts::ContextKind;
use super::nvml::NvmlProcessMemory;
use super::{CURRENT, CudaDriver, modules, shim};
use crate::card::{Card, CardReading, PeerAttributes, Visibility};
use crate::driver::{
    Address, COMMUNICATOR_ID_BYTES, CopyPath, Driver, EventId, GraphId, HostSpan, Joined, KernelId, Membership,
    MembershipId, PeerCall, RawArg, Reservation, StreamId, ThreadState,
};
use crate::error::DeviceError;
use crate::gemm::RawGemm;
use crate::kernel::{Grid, Kernel, Source};
use crate::kernels::copy_small::{self, CopySmallArgs};
use crate::kernels::trap;
use crate::library::FoundLibrary;
use crate::machine::DeviceKind;
use crate::workers::Workers;

/// More arguments than any kernel has; they are laid out on the stack.
pub(super) const MAX_ARGS: usize = 32;

impl Driver for CudaDriver {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn cards(&self) -> &[Card] {
        &self.cards
    }

    fn visibility(&self) -> Option<Visibility> {
        self.find_visibility()
    }

    fn read(&self, card: usize) -> Result<CardReading, DeviceError> {
        let nvml_index = self.cuda_card(card)?.nvml_index;
        match &self.nvml {
            Some(nvml) => nvml.read(nvml_index),
            None => self.read_inside(card),
        }
    }

    fn process_bytes(&self, card: usize) -> Result<Option<u64>, DeviceError> {
        let cuda_card = self.cuda_card(card)?;
        let open = cuda_card.open.read().unwrap_or_else(PoisonError::into_inner).is_some();
        // NVML counts the process, not its contexts.
        let Some(nvml) = self.nvml.as_ref().filter(|_| cuda_card.context == ContextKind::Primary) else {
            return Ok(None);
        };
        Ok(match nvml.process_memory(cuda_card.nvml_index, std::process::id())? {
            NvmlProcessMemory::Bytes(bytes) => Some(bytes),
            // With a context the process does use memory: if it is not listed, the list is unusable.
            NvmlProcessMemory::NotListed => (!open).then_some(0),
            NvmlProcessMemory::Unavailable => None,
        })
    }

    fn open(&self, card: usize) -> Result<(), DeviceError> {
        self.open_card(card)
    }

    fn close(&self, card: usize) {
        self.close_card(card);
    }

    fn reserve(&self, card: usize, bytes: u64, capped: bool) -> Result<Reservation, DeviceError> {
        let during = "reserving memory";
        let open = self.enter(card, during)?;
        let reservation = match capped {
            true => self.reserve_in_pool(card, open, bytes)?,
            false => {
                let mut raw = 0;
                // SAFETY: one address is written.
                let code = unsafe { (self.api.cuMemAlloc_v2)(&raw mut raw, bytes as usize) };
                self.check_memory(card, during, code, bytes)?;
                Reservation { base: Address { card, raw }, bytes, pool: 0 }
            }
        };
        self.reservations.add(reservation);
        Ok(reservation)
    }

    fn release(&self, reservation: Reservation) {
        // What still uses it cannot be waited for; the end of the process frees it.
        if self.leaves_all_to_the_system() {
            return;
        }
        // Another card may still be accessing it by peer access.
        for card in (0..self.cuda_cards.len()).filter(|card| *card != reservation.base.card) {
            self.wait_for_all(card);
        }
        self.wait_for_all(reservation.base.card);
        // If the work of a card did not end, nothing is freed either.
        if self.leaves_all_to_the_system() {
            return;
        }
        let readers = self.reservations.remove(&reservation);
        // A closed or lost card has nothing left to free.
        let Ok(open) = self.enter(reservation.base.card, "releasing memory") else { return };
        // Some drivers give the handle of a destroyed pool to a new one, together with its access.
        for device in readers {
            let _ = self.set_access(&reservation, Access::none(device));
        }
        // SAFETY: the reservation came from `reserve` and is freed once; all work on the card, which might still access
        // it, has ended.
        unsafe {
            if reservation.pool == 0 {
                (self.api.cuMemFree_v2)(reservation.base.raw);
                return;
            }
            (self.api.cuMemFreeAsync)(reservation.base.raw, open.service_stream);
        }
        if self.await_service(reservation.base.card, "releasing memory", open).is_ok() {
            // SAFETY: created by `reserve`, empty now, and destroyed once.
            unsafe { (self.api.cuMemPoolDestroy)(reservation.pool as Handle) };
        }
    }

    fn pool_refuses_more(&self, reservation: &Reservation) -> Result<bool, DeviceError> {
        if reservation.pool == 0 {
            return Ok(false);
        }
        let card = reservation.base.card;
        let open = self.enter(card, "asking the pool for more")?;
        match self.take_from(card, open, reservation.pool as Handle, 1) {
            Err(DeviceError::OutOfMemory { .. }) => Ok(true),
            Err(error) => Err(error),
            Ok(raw) => {
                // SAFETY: allocated just above and not used.
                unsafe { (self.api.cuMemFreeAsync)(raw, open.service_stream) };
                self.await_service(card, "asking the pool for more", open).map(|_| false)
            }
        }
    }

    fn alloc_host(&self, card: usize, bytes: u64) -> Result<HostSpan, DeviceError> {
        let during = "allocating pinned memory";
        self.enter(card, during)?;
        let mut ptr: *mut c_void = ptr::null_mut();
        // SAFETY: one pointer is written. Portable: the other role's card copies from it too.
        let code = unsafe { (self.api.cuMemHostAlloc)(&raw mut ptr, bytes as usize, api::HOST_PORTABLE) };
        if code == api::OUT_OF_MEMORY {
            return Err(DeviceError::OutOfPinned { asked: bytes });
        }
        self.check(card, during, code)?;
        Ok(HostSpan { ptr: ptr.cast(), bytes })
    }

    fn free_host(&self, card: usize, span: HostSpan) {
        if !self.leaves_all_to_the_system() && self.enter(card, "freeing pinned memory").is_ok() {
            // SAFETY: the span came from `alloc_host` and is freed once.
            unsafe { (self.api.cuMemFreeHost)(span.ptr.cast()) };
        }
    }

    fn ordinal(&self, card: usize) -> Option<i32> {
        self.device(card).ok()
    }

    fn enter_thread(&self, is_foreign: bool) -> ThreadState {
        let mode = if is_foreign { api::CAPTURE_RELAXED } else { api::CAPTURE_THREAD_LOCAL };
        let (mut context, mut capture_mode) = (0, mode);
        // SAFETY: one handle is written.
        unsafe { (self.api.cuCtxGetCurrent)(&raw mut context) };
        // SAFETY: one int is read and written.
        unsafe { (self.api.cuThreadExchangeStreamCaptureMode)(&raw mut capture_mode) };
        ThreadState { context: context as u64, capture_mode }
    }

    fn restore_thread(&self, before: ThreadState) {
        let mut capture_mode = before.capture_mode;
        // SAFETY: one int is read and written.
        unsafe { (self.api.cuThreadExchangeStreamCaptureMode)(&raw mut capture_mode) };
        // SAFETY: it was current on this thread before, and nothing here destroys contexts of others.
        unsafe { (self.api.cuCtxSetCurrent)(before.context as Handle) };
        CURRENT.set(0);
    }

    fn is_capturing(&self, card: usize, stream: StreamId) -> Result<bool, DeviceError> {
        let during = "asking whether a stream is captured";
        self.enter(card, during)?;
        let mut status = 0;
        // SAFETY: one int is written.
        match unsafe { (self.api.cuStreamIsCapturing)(stream as Handle, &raw mut status) } {
            // The legacy default stream cannot be asked while a stream that synchronises with it is captured.
            api::CAPTURE_IMPLICIT => Ok(true),
            code => self.check(card, during, code).map(|()| status != 0),
        }
    }

    fn create_stream(&self, card: usize, high_priority: bool) -> Result<StreamId, DeviceError> {
        let during = "creating a stream";
        let open = self.enter(card, during)?;
        let priority = if high_priority { open.greatest_priority } else { open.least_priority };
        let mut stream = 0;
        // SAFETY: one handle is written.
        let code =
            unsafe { (self.api.cuStreamCreateWithPriority)(&raw mut stream, api::STREAM_NON_BLOCKING, priority) };
        self.check(card, during, code)?;
        self.cuda_card(card)?.streams.add(stream);
        Ok(stream as StreamId)
    }

    fn destroy_stream(&self, card: usize, stream: StreamId) {
        if self.enter(card, "destroying a stream").is_ok() {
            self.retire_stream(card, stream as Handle);
        }
    }

    /// Threads sleep in waits for these events (`EVENT_BLOCKING_SYNC`). Spinning would return about ten microseconds sooner
    /// and cost a core that decodes audio. Steps are queued ahead, so those microseconds do not matter.
    fn create_event(&self, card: usize, timed: bool) -> Result<EventId, DeviceError> {
        let during = "creating an event";
        self.enter(card, during)?;
        let timing = if timed { 0 } else { api::EVENT_DISABLE_TIMING };
        let mut event = 0;
        // SAFETY: one handle is written.
        let code = unsafe { (self.api.cuEventCreate)(&raw mut event, api::EVENT_BLOCKING_SYNC | timing) };
        self.check(card, during, code)?;
        Ok(event as EventId)
    }

    fn destroy_event(&self, card: usize, event: EventId) {
        if self.enter(card, "destroying an event").is_ok() {
            // SAFETY: the event came from `create_event` and is destroyed once; waits already queued stay valid.
            unsafe { (self.api.cuEventDestroy_v2)(event as Handle) };
        }
    }

    fn record(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let during = "recording an event";
        self.enter(card, during)?;
        // SAFETY: both handles are of this card and kept alive by the types that hold them.
        self.check(card, during, unsafe { (self.api.cuEventRecord)(event as Handle, stream as Handle) })
    }

    fn wait(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let during = "waiting for an event";
        self.enter(card, during)?;
        // SAFETY: both handles are alive; the event may be of another card.
        self.check(card, during, unsafe { (self.api.cuStreamWaitEvent)(stream as Handle, event as Handle, 0) })
    }

    fn reached(&self, card: usize, event: EventId) -> Result<bool, DeviceError> {
        let during = "querying an event";
        self.enter(card, during)?;
        // SAFETY: the event is alive.
        match unsafe { (self.api.cuEventQuery)(event as Handle) } {
            api::NOT_READY => Ok(false),
            code => self.check(card, during, code).map(|()| true),
        }
    }

    fn synchronize(&self, card: usize, event: EventId) -> Result<(), DeviceError> {
        let during = "waiting for the device";
        self.enter(card, during)?;
        if self.may_wait_for_others(card) {
            return self.poll(card, event as Handle, during, None).map(drop);
        }
        // SAFETY: the event is alive.
        self.check(card, during, unsafe { (self.api.cuEventSynchronize)(event as Handle) })
    }

    fn synchronize_within(&self, card: usize, event: EventId, longest: Duration) -> Result<bool, DeviceError> {
        let during = "waiting for the device";
        self.enter(card, during)?;
        self.poll(card, event as Handle, during, Some(longest))
    }

    fn abandon(&self, card: usize) {
        self.mark_abandoned(card);
    }

    fn elapsed_ns(&self, card: usize, from: EventId, to: EventId) -> Result<u64, DeviceError> {
        let during = "reading the time between two events";
        self.enter(card, during)?;
        let ns = self.between_ns(card, during, from as Handle, to as Handle)?;
        Ok(u64::try_from(ns).unwrap_or(0))
    }

    fn reached_at_ns(&self, card: usize, event: EventId) -> Result<u64, DeviceError> {
        self.time_of(card, event as Handle)
    }

    fn copy(&self, card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError> {
        let during = "copying";
        self.enter(card, during)?;
        if path.bytes() == 0 {
            // CUDA graphs have no node for an empty copy.
            return Ok(());
        }
        let (bytes, stream) = (path.bytes() as usize, stream as Handle);
        let code = match path {
            CopyPath::HostToDevice { from, to } => {
                // SAFETY: both spans are `bytes` long and live until the copy's event was waited for.
                unsafe { (self.api.cuMemcpyHtoDAsync_v2)(to.raw, from.ptr.cast(), bytes, stream) }
            }
            CopyPath::DeviceToHost { from, to } => {
                // SAFETY: as above, and the host does not read the span before that event.
                unsafe { (self.api.cuMemcpyDtoHAsync_v2)(to.ptr.cast(), from.raw, bytes, stream) }
            }
            CopyPath::WithinDevice { from, to, .. } => {
                // SAFETY: both ranges are in reservations of this card.
                unsafe { (self.api.cuMemcpyDtoDAsync_v2)(to.raw, from.raw, bytes, stream) }
            }
            CopyPath::Peer { from, to, call: PeerCall::Unified, .. } => {
                // SAFETY: both ranges are in live reservations, and each card may access both.
                unsafe { (self.api.cuMemcpyDtoDAsync_v2)(to.raw, from.raw, bytes, stream) }
            }
            CopyPath::Peer { from, to, call: PeerCall::BetweenContexts, .. } => {
                let (source, target) = (self.opened(from.card, during)?, self.opened(to.card, during)?);
                // SAFETY: each range is in a reservation of the card whose context is passed with it.
                unsafe { (self.api.cuMemcpyPeerAsync)(to.raw, target.context, from.raw, source.context, bytes, stream) }
            }
        };
        self.check(card, during, code)
    }

    /// Uses a kernel: a card has one copy engine per direction, which may be busy with a bulk copy.
    fn copy_small(&self, card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError> {
        let bytes = path.bytes();
        // With unified addressing, the device address of pinned memory is its host address.
        let on_host = |span: HostSpan| Address { card, raw: span.ptr as u64 };
        let (from, to) = match path {
            CopyPath::HostToDevice { from, to } => (on_host(from), to),
            CopyPath::DeviceToHost { from, to } => (from, on_host(to)),
            CopyPath::WithinDevice { .. } | CopyPath::Peer { .. } => return self.copy(card, stream, path),
        };
        let is_words = [bytes, from.raw, to.raw].iter().all(|n| n % 4 == 0);
        if !is_words || bytes == 0 || bytes > copy_small::MOST_BYTES {
            return self.copy(card, stream, path);
        }
        let function = self.load(card, &copy_small::KERNEL)?;
        let args = CopySmallArgs { from: (from, bytes), to: (to, bytes), words: (bytes / 4) as u32 };
        let args = copy_small::KERNEL.bind_addresses(args)?;
        self.launch(card, stream, (&copy_small::KERNEL, function), copy_small::GRID, &args)
    }

    fn fill(&self, card: usize, stream: StreamId, at: Address, bytes: u64, value: u8) -> Result<(), DeviceError> {
        let during = "filling memory";
        self.enter(card, during)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is in a reservation of this card.
        let code = unsafe { (self.api.cuMemsetD8Async)(at.raw, value, bytes as usize, stream as Handle) };
        self.check(card, during, code)
    }

    fn load(&self, card: usize, kernel: &'static Kernel) -> Result<KernelId, DeviceError> {
        let module = self.module(card, kernel.source, || self.cubin(card, kernel.source))?;
        self.check_found(card, kernel, modules::function(&self.api, module, kernel.name))
    }

    fn compile(&self, card: usize, sources: &[&'static Source], workers: &Workers) -> Result<(), DeviceError> {
        let missing = self.cuda_card(card)?.modules.missing(sources);
        if missing.len() < 2 {
            // A single source is compiled when it is loaded.
            return Ok(());
        }
        self.cubins.compiler(self.version)?;
        let mut made: Vec<Option<Result<Vec<u8>, DeviceError>>> = missing.iter().map(|_| None).collect();
        workers.each_chunk(&mut made, 1, |i, made| made[0] = Some(self.cubin(card, missing[i])));
        for (source, cubin) in missing.into_iter().zip(made) {
            self.module(card, source, || cubin.unwrap_or_else(|| self.cubin(card, source)))?;
        }
        Ok(())
    }

    fn launch(
        &self,
        card: usize,
        stream: StreamId,
        kernel: (&'static Kernel, KernelId),
        grid: Grid,
        args: &[RawArg],
    ) -> Result<(), DeviceError> {
        let during = "launching a kernel";
        self.enter(card, during)?;
        let (kernel, function) = (kernel.0, kernel.1 as Handle);
        if args.len() > MAX_ARGS {
            let problem = format!("has {} arguments; at most {MAX_ARGS} can be passed", args.len());
            return Err(DeviceError::Arguments { kernel: kernel.name, problem });
        }
        if let Some(code) = self.cuda_card(card)?.modules.allow_shared(&self.api, function, grid.shared_bytes) {
            self.check(card, during, code)?;
        }
        let mut values = [ArgBytes([0; 8]); MAX_ARGS];
        let mut pointers = [ptr::null_mut::<c_void>(); MAX_ARGS];
        for ((value, pointer), arg) in values.iter_mut().zip(&mut pointers).zip(args) {
            *value = ArgBytes::of(arg);
            *pointer = (&raw mut *value).cast();
        }
        let ([x, y, z], shared) = (grid.blocks, grid.shared_bytes);
        let (pointers, none) = (pointers.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the arguments match the kernel's parameters in number and type (checked), their memory is kept alive by
        // its owner until the launch has run, and the driver copies the values during the call.
        let code = unsafe {
            (self.api.cuLaunchKernel)(function, x, y, z, grid.threads, 1, 1, shared, stream as Handle, pointers, none)
        };
        self.check(card, during, code)
    }

    fn gemm(&self, card: usize, stream: StreamId, gemm: &RawGemm) -> Result<(), DeviceError> {
        self.queue_gemm(card, stream, gemm)
    }

    fn prepare_gemms(&self, card: usize) -> Result<(), DeviceError> {
        self.open_gemms(card)
    }

    fn new_communicator_id(&self) -> Result<[u8; COMMUNICATOR_ID_BYTES], DeviceError> {
        self.make_communicator_id()
    }

    fn join_communicator(&self, card: usize, membership: &Membership) -> Result<Joined, DeviceError> {
        self.join_ranks(card, membership)
    }

    fn all_reduce(
        &self,
        at: Address,
        count: u64,
        membership: MembershipId,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        self.queue_all_reduce(at, count, membership, stream)
    }

    fn broadcast(
        &self,
        at: Address,
        bytes: u64,
        root: u32,
        membership: MembershipId,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        self.queue_broadcast(at, bytes, root, membership, stream)
    }

    fn check_communicator(&self, card: usize, membership: MembershipId) -> Result<(), DeviceError> {
        self.check_ranks(card, membership)
    }

    fn abort_communicator(&self, card: usize, membership: MembershipId) {
        self.abort_ranks(card, membership);
    }

    fn leave_communicator(&self, card: usize, membership: MembershipId) {
        self.leave_ranks(card, membership);
    }

    fn trap(&self, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        if self.has_shim {
            // A real trap would take the other context of the card with it.
            shim::lose(self.opened(card, "trapping")?.context);
            return Ok(());
        }
        let function = self.load(card, &trap::KERNEL)?;
        let one = Grid { blocks: [1, 1, 1], threads: 1, shared_bytes: 0 };
        self.launch(card, stream, (&trap::KERNEL, function), one, &[])
    }

    fn begin_capture(&self, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        self.start_capture(card, stream)
    }

    fn end_capture(&self, card: usize, stream: StreamId) -> Result<GraphId, DeviceError> {
        self.finish_capture(card, stream)
    }

    fn abandon_capture(&self, card: usize, stream: StreamId) {
        self.discard_capture(card, stream);
    }

    fn replay(&self, card: usize, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.launch_graph(card, stream, graph)
    }

    fn destroy_graph(&self, card: usize, graph: GraphId) {
        self.destroy_graph_exec(card, graph);
    }

    fn can_access_peer(&self, reader: usize, owner: usize) -> Result<bool, DeviceError> {
        if self.share_a_device(reader, owner)? {
            // Two contexts of one card: the driver reports no access of a card to itself, and grants it.
            return Ok(reader != owner);
        }
        let mut can = 0;
        let (reader_device, owner_device) = (self.device(reader)?, self.device(owner)?);
        // SAFETY: one int is written.
        let code = unsafe { (self.api.cuDeviceCanAccessPeer)(&raw mut can, reader_device, owner_device) };
        self.check(reader, "querying peer access", code).map(|()| can != 0)
    }

    fn peer_attributes(&self, reader: usize, owner: usize) -> Result<PeerAttributes, DeviceError> {
        if self.share_a_device(reader, owner)? {
            // Two contexts of one card, of which the driver knows no attributes.
            let access_supported = reader != owner;
            return Ok(PeerAttributes {
                performance_rank: 0,
                access_supported,
                native_atomics: access_supported,
                array_access: access_supported,
            });
        }
        let (reader_device, owner_device) = (self.device(reader)?, self.device(owner)?);
        let attribute = |which: i32| {
            let mut value = 0;
            // SAFETY: one int is written.
            let code =
                unsafe { (self.api.cuDeviceGetP2PAttribute)(&raw mut value, which, reader_device, owner_device) };
            self.check(reader, "reading the attributes of peer access", code).map(|()| value)
        };
        Ok(PeerAttributes {
            performance_rank: attribute(api::P2P_PERFORMANCE_RANK)?,
            access_supported: attribute(api::P2P_ACCESS_SUPPORTED)? != 0,
            native_atomics: attribute(api::P2P_NATIVE_ATOMIC_SUPPORTED)? != 0,
            array_access: attribute(api::P2P_ARRAY_ACCESS_SUPPORTED)? != 0,
        })
    }

    fn deny_peer(&self, reservation: &Reservation, reader: usize) -> Result<(), DeviceError> {
        let (during, owner) = ("disabling peer access", reservation.base.card);
        // The access of a card to its own pools cannot be taken back: two contexts on one card keep it.
        if reservation.pool == 0 || self.share_a_device(owner, reader)? {
            return Ok(());
        }
        self.enter(owner, during)?;
        self.check(owner, during, self.set_access(reservation, Access::none(self.device(reader)?)))
    }

    fn allow_peer(&self, reservation: &Reservation, reader: usize) -> Result<(), DeviceError> {
        let during = "enabling peer access";
        let owner = reservation.base.card;
        if owner == reader {
            return Ok(());
        }
        if reservation.pool == 0 {
            let what = "its memory is not in a memory pool, and access to all of it is never enabled".to_owned();
            return Err(DeviceError::Failed { card: owner, during, what });
        }
        self.enter(owner, during)?;
        let device = self.device(reader)?;
        self.check(owner, during, self.set_access(reservation, Access::read_write(device)))?;
        if !self.share_a_device(owner, reader)? {
            self.reservations.grant(reservation, device);
        }
        Ok(())
    }

    fn card_of(&self, at: Address) -> Result<usize, DeviceError> {
        let during = "looking up an address";
        self.enter(at.card, during)?;
        let mut device = -1i32;
        // SAFETY: this attribute is one int.
        let code =
            unsafe { (self.api.cuPointerGetAttribute)((&raw mut device).cast(), api::POINTER_DEVICE_ORDINAL, at.raw) };
        self.check(at.card, during, code)?;
        // With two contexts on one card, the driver's answer fits both.
        if self.cuda_card(at.card)?.device == Some(device) {
            return Ok(self.reservations.card_of(at).unwrap_or(at.card));
        }
        self.cuda_cards.iter().position(|cuda_card| cuda_card.device == Some(device)).ok_or_else(|| {
            DeviceError::Failed {
                card: at.card,
                during,
                what: format!("it belongs to device {device}, which is not one of our cards"),
            }
        })
    }

    fn libraries(&self) -> Vec<FoundLibrary> {
        let nvml = self.nvml.iter().map(|nvml| nvml.found.clone());
        // The compiler and cuBLASLt are opened here to report their paths, even if no kernel or GEMM needed them.
        let compiler = self.cubins.compiler(self.version).ok().map(|compiler| compiler.found().clone());
        let gemms = self.blas.get(self.version).ok().map(|blas| blas.found.clone());
        // NCCL is not: a run with one rank does without it.
        let nccl = self.nccl.if_open().map(|nccl| nccl.found.clone());
        std::iter::once(self.found.clone()).chain(nvml).chain(compiler).chain(gemms).chain(nccl).collect()
    }

    fn driver_version(&self) -> String {
        self.driver_version.clone()
    }

    fn now_ns(&self) -> u64 {
        self.host_ns()
    }
}

impl CudaDriver {
    /// The cubin of `source` for the card: from the cache, or compiled now.
    fn cubin(&self, card: usize, source: &Source) -> Result<Vec<u8>, DeviceError> {
        let (major, minor) = self.cards[card].capability;
        self.cubins.get(source, &format!("sm_{major}{minor}"), self.version, &self.driver_version)
    }

    /// The module of `source` on the card; loads it from `cubin` if needed.
    fn module(
        &self,
        card: usize,
        source: &'static Source,
        cubin: impl FnOnce() -> Result<Vec<u8>, DeviceError>,
    ) -> Result<Handle, DeviceError> {
        let during = "loading a kernel";
        self.enter(card, during)?;
        let check = |code, bytes| self.check_memory(card, during, code, bytes);
        self.cuda_card(card)?.modules.get(&self.api, source, cubin, check)
    }

    fn check_found(
        &self,
        card: usize,
        kernel: &'static Kernel,
        function: Result<Handle, Code>,
    ) -> Result<KernelId, DeviceError> {
        let during = "loading a kernel";
        function.map(|function| function as KernelId).map_err(|code| match self.failure(card, during, code) {
            DeviceError::Failed { what, .. } => {
                DeviceError::Failed { card, during, what: format!("{kernel:?}: {what}") }
            }
            lost => lost,
        })
    }
}

/// One argument as the driver reads it: the first bytes, as many as the kernel's parameter has.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ArgBytes([u8; 8]);

impl ArgBytes {
    fn of(arg: &RawArg) -> ArgBytes {
        let four = |bytes: [u8; 4]| std::array::from_fn(|i| if i < 4 { bytes[i] } else { 0 });
        ArgBytes(match *arg {
            RawArg::Read { at, .. } | RawArg::Write { at, .. } => at.raw.to_ne_bytes(),
            RawArg::U64(n) => n.to_ne_bytes(),
            RawArg::U32(n) => four(n.to_ne_bytes()),
            RawArg::F32(x) => four(x.to_ne_bytes()),
        })
    }
}
