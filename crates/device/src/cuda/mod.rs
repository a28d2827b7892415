//! NVIDIA cards, through the CUDA driver API.
//!
//! Reading order: [`api`] (the functions), [`init`] (starting the driver and listing the cards), this file (opening,
//! entering and closing a card), [`contexts`] (where its context comes from), [`teardown`] (waiting for its work),
//! [`pools`] (its memory), [`work`] (memory, streams, events, copies, launches), [`modules`] (kernels on a card; uses
//! [`nvrtc`] and [`cubin_cache`]), [`gemms`] (uses [`cublas`]), [`capture`] (uses [`capture_lock`]), [`clock`] (event
//! times), [`communicators`] (uses [`nccl`]), [`bounded_waits`] (lost cards), [`nvml`] (readings), [`shim`] (rules of two cards, and their faults).
//!
//! Our handles are the driver's handles, as numbers.

mod api;
mod init;
mod bounded_waits;
mod capture;
mod clock;
mod communicators;
mod contexts;
mod cubin_cache;
mod cublas;
mod capture_lock;
mod modules;
mod nccl;
mod nvml;
mod pools;
pub(crate) mod nvrtc;
mod gemms;
mod shim;
mod status;
mod teardown;
mod work;

#[cfg(test)]
mod emulated;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

pub use cubin_cache::KernelCache;
pub(crate) use init::survey;
pub(crate) use nccl::{REQUIRED_ENVIRONMENT, find_nccl};

use self::api::{Code, DriverApi, Handle};
use self::capture_lock::CAPTURE_LOCK;
use self::clock::CardClock;
use self::communicators::CardCommunicators;
use self::contexts::{ContextKind, ListedCard};
use self::gemms::{CardGemms, LazyCublas};
use self::init::InitializedDriver;
use self::modules::{Cubins, Modules};
use self::nccl::LazyNccl;
use self::nvml::NvmlReader;
use self::pools::Reservations;
use self::teardown::CardStreams;
use crate::bytes::show;
use crate::card::{Card, CardReading, Visibility};
use crate::driver::TEARDOWN_DEADLINE;
use crate::error::DeviceError;
use crate::library::{FoundLibrary, LibraryError, Search};

thread_local! {
    /// The opening that this thread's current context belongs to; 0 if unknown.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Numbers the openings of cards, so that a thread never confuses a closed context with one opened later.
static OPENINGS: AtomicU64 = AtomicU64::new(1);

/// The initialised CUDA driver, and every card that it or NVML lists.
pub(crate) struct CudaDriver {
    api: DriverApi,
    nvml: Option<NvmlReader>,
    found: FoundLibrary,
    version: i32,
    cards: Vec<Card>,
    cuda_cards: Vec<CudaCard>,
    cubins: Cubins,
    blas: LazyCublas,
    nccl: LazyNccl,
    /// The value of `CUDA_VISIBLE_DEVICES`, if it is set.
    visible_devices: Option<String>,
    /// Read once: cache keys and reports use it often.
    driver_version: String,
    started: Instant,
    /// [`bounded_waits::GRACE`]; shorter in tests.
    grace: Duration,
    /// [`TEARDOWN_DEADLINE`]; shorter in tests.
    teardown_deadline: Duration,
    /// Whether the work of a card does not end, although no call has failed.
    has_abandoned_card: AtomicBool,
    reservations: Reservations,
    /// Whether [`shim`] is between us and the driver.
    has_shim: bool,
}

/// How the driver is opened, for tests on one card.
#[derive(Clone, Copy)]
struct OpenOptions {
    /// Whether the first card is shown as two: [`contexts`].
    two_contexts: bool,
    /// Whether the [`shim`] is installed.
    shim: bool,
}

/// The state of one card.
struct CudaCard {
    /// The driver's handle; `None` for a card hidden from this process.
    device: Option<i32>,
    nvml_index: usize,
    context: ContextKind,
    open: RwLock<Option<OpenCard>>,
    streams: CardStreams,
    modules: Modules,
    gemms: CardGemms,
    communicators: CardCommunicators,
    clock: CardClock,
    /// When the first error came after which the card cannot be used.
    lost_at: OnceLock<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct OpenCard {
    /// Openings without a matching close: a card that is opened again while its last user closes it stays open.
    users: usize,
    context: Handle,
    opening: u64,
    /// For stream-ordered allocations and the clock only: no other work delays them.
    service_stream: Handle,
    least_priority: i32,
    greatest_priority: i32,
}

impl CudaDriver {
    /// Finds and initialises the driver; `None` if there is no NVIDIA device.
    pub(crate) fn open() -> Result<Option<CudaDriver>, LibraryError> {
        let options = OpenOptions { two_contexts: contexts::are_two_wanted(), shim: shim::is_wanted() };
        CudaDriver::open_in(&Search::from_env(), options)
    }

    /// The same with the given search and options.
    fn open_in(search: &Search, options: OpenOptions) -> Result<Option<CudaDriver>, LibraryError> {
        let Some(mut initialized) = init::init(search)? else { return Ok(None) };
        if options.shim {
            initialized.api = shim::install(initialized.api);
        }
        // Without NVML cards can still be used: they are numbered in PCI bus order, and memory per process is unknown.
        let nvml = NvmlReader::open(search).ok();
        let listed = nvml.as_ref().and_then(|nvml| nvml.cards().ok()).filter(|cards| !cards.is_empty());
        // If NVML cannot list the cards, its numbering may differ from ours: it is not used.
        let nvml = nvml.filter(|_| listed.is_some());
        let cards = contexts::listed(init::match_devices(listed, &initialized.visible, &init::hider(search)));
        let cards = if options.two_contexts { contexts::shown_twice(cards) } else { cards };
        let (cubins, blas, nccl) = (Cubins::new(search), LazyCublas::new(search), LazyNccl::new(search));
        let mut driver = CudaDriver::assemble(initialized, nvml, cards, cubins, blas, nccl);
        driver.has_shim = options.shim;
        driver.visible_devices = search.cuda_visible_devices.clone();
        Ok(Some(driver))
    }

    fn assemble(
        initialized: InitializedDriver,
        nvml: Option<NvmlReader>,
        cards: Vec<ListedCard>,
        cubins: Cubins,
        blas: LazyCublas,
        nccl: LazyNccl,
    ) -> CudaDriver {
        let cuda_card = |listed: &ListedCard| CudaCard {
            device: listed.device,
            nvml_index: listed.nvml_index,
            context: listed.context,
            open: RwLock::new(None),
            streams: CardStreams::default(),
            modules: Modules::default(),
            gemms: CardGemms::default(),
            communicators: CardCommunicators::default(),
            clock: CardClock::default(),
            lost_at: OnceLock::new(),
        };
        let cuda = init::spell(initialized.version);
        let driver_version = match nvml.as_ref().and_then(NvmlReader::driver_version) {
            Some(driver) => format!("{driver} (CUDA {cuda})"),
            None => format!("CUDA {cuda}"),
        };
        CudaDriver {
            api: initialized.api,
            nvml,
            found: initialized.found,
            version: initialized.version,
            cuda_cards: cards.iter().map(cuda_card).collect(),
            cards: cards.into_iter().map(|listed| listed.card).collect(),
            cubins,
            blas,
            nccl,
            visible_devices: None,
            driver_version,
            started: Instant::now(),
            grace: bounded_waits::GRACE,
            teardown_deadline: TEARDOWN_DEADLINE,
            has_abandoned_card: AtomicBool::new(false),
            reservations: Reservations::default(),
            has_shim: false,
        }
    }

    /// What decides which cards this process may use; `None` if it may use all of them.
    fn find_visibility(&self) -> Option<Visibility> {
        let hidden_by = self.cards.iter().find_map(|card| card.hidden_by.clone());
        let variable = self.visible_devices.as_ref().map(|value| format!("CUDA_VISIBLE_DEVICES={value}"));
        let undo = variable.is_some().then(|| "unset CUDA_VISIBLE_DEVICES".to_owned());
        let by = variable.or(hidden_by)?;
        let numbered = self.cuda_cards.iter().enumerate().filter_map(|(card, state)| Some((state.device?, card)));
        let mut numbered: Vec<(i32, usize)> = numbered.collect();
        numbered.sort_unstable();
        let cuda_order = numbered.into_iter().map(|(_, card)| card).collect();
        Some(Visibility { by, undo, cuda_order, lists_hidden: self.nvml.is_some() })
    }

    fn cuda_card(&self, card: usize) -> Result<&CudaCard, DeviceError> {
        self.cuda_cards.get(card).ok_or(DeviceError::NoSuchCard { index: card, found: self.cuda_cards.len() })
    }

    fn device(&self, card: usize) -> Result<i32, DeviceError> {
        self.cuda_card(card)?.device.ok_or_else(|| {
            let Card { uuid, hidden_by, .. } = self.cards[card].clone();
            DeviceError::Hidden { index: card, uuid, by: hidden_by.unwrap_or_default() }
        })
    }

    fn opened(&self, card: usize, during: &'static str) -> Result<OpenCard, DeviceError> {
        let open = *self.cuda_card(card)?.open.read().unwrap_or_else(PoisonError::into_inner);
        open.ok_or_else(|| DeviceError::Failed { card, during, what: "the card is not open".to_string() })
    }

    /// Makes the card's context current on this thread, unless it already is. The driver is asked too: another library in
    /// this process may have made its own context current meanwhile.
    fn enter(&self, card: usize, during: &'static str) -> Result<OpenCard, DeviceError> {
        let open = self.opened(card, during)?;
        let mut current = 0;
        // SAFETY: one handle is written.
        let is_current = unsafe { (self.api.cuCtxGetCurrent)(&raw mut current) } == 0 && current == open.context;
        if !is_current || CURRENT.get() != open.opening {
            // SAFETY: the context is retained until `close`, which takes it out of `open` first.
            self.check(card, during, unsafe { (self.api.cuCtxSetCurrent)(open.context) })?;
            CURRENT.set(open.opening);
        }
        Ok(open)
    }

    fn leave(&self) {
        // SAFETY: a null context is always valid.
        unsafe { (self.api.cuCtxSetCurrent)(0) };
        CURRENT.set(0);
    }

    fn check(&self, card: usize, during: &'static str, code: Code) -> Result<(), DeviceError> {
        if code == 0 { Ok(()) } else { Err(self.failure(card, during, code)) }
    }

    /// The error for a code other than 0.
    fn failure(&self, card: usize, during: &'static str, code: Code) -> DeviceError {
        let what = status::describe(&self.api, code);
        if status::is_loss(code) {
            self.mark_lost(card);
            return DeviceError::Lost { card, during, what };
        }
        DeviceError::Failed { card, during, what }
    }

    /// [`check`](Self::check) for an allocation of `asked` bytes on the card whose context is current.
    fn check_memory(&self, card: usize, during: &'static str, code: Code, asked: u64) -> Result<(), DeviceError> {
        if code == api::OUT_OF_MEMORY {
            let (free, total) = self.memory(card, during)?;
            return Err(DeviceError::OutOfMemory { card, asked, free, total });
        }
        self.check(card, during, code)
    }

    /// Free and total bytes of the card whose context is current.
    fn memory(&self, card: usize, during: &'static str) -> Result<(u64, u64), DeviceError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: two sizes are written.
        self.check(card, during, unsafe { (self.api.cuMemGetInfo_v2)(&raw mut free, &raw mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// A reading without NVML. CUDA reports memory only inside a context, so a closed card is opened temporarily. Then
    /// `free_bytes` does not include the context's own memory, which errs on the safe side.
    fn read_inside(&self, card: usize) -> Result<CardReading, DeviceError> {
        let during = "reading the card";
        let device = self.device(card)?;
        let was_open = self.enter(card, during).is_ok();
        let mut temporary = None;
        if !was_open {
            let kind = self.cuda_card(card)?.context;
            let context = kind.open(&self.api, device).map_err(|code| self.context_failure(card, during, code))?;
            temporary = Some((kind, context));
            CURRENT.set(0);
            // SAFETY: the context was opened just above.
            let _ = unsafe { (self.api.cuCtxSetCurrent)(context) };
        }
        let memory = self.memory(card, during);
        if let Some((kind, context)) = temporary {
            self.leave();
            kind.close(&self.api, device, context);
        }
        memory.map(|(free_bytes, total_bytes)| CardReading { free_bytes, total_bytes, ..CardReading::default() })
    }

    fn open_card(&self, card: usize) -> Result<(), DeviceError> {
        let during = "opening the card";
        let device = self.device(card)?;
        let mut place = self.cuda_card(card)?.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = &mut *place {
            open.users += 1;
            return Ok(());
        }
        let kind = self.cuda_card(card)?.context;
        let context = kind.open(&self.api, device).map_err(|code| self.context_failure(card, during, code))?;
        match self.enter_new(card, context).and_then(|open| self.start_clock(card, &open).map(|()| open)) {
            Ok(open) => *place = Some(open),
            Err(error) => {
                self.leave();
                kind.close(&self.api, device, context);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The error for a context that could not be created. The two errors of a card that works and has no room for another
    /// context are no loss.
    fn context_failure(&self, card: usize, during: &'static str, code: Code) -> DeviceError {
        match code {
            api::DEVICE_UNAVAILABLE | api::OUT_OF_MEMORY => self.no_context(card, during, code),
            code => self.failure(card, during, code),
        }
    }

    fn no_context(&self, card: usize, during: &'static str, code: Code) -> DeviceError {
        let mut what = status::describe(&self.api, code);
        if code == api::DEVICE_UNAVAILABLE {
            what += "; another process may use the card exclusively";
        } else if let Some(reading) =
            self.nvml.as_ref().and_then(|nvml| nvml.read(self.cuda_cards[card].nvml_index).ok())
        {
            let (free, total) = (show(reading.free_bytes), show(reading.total_bytes));
            what += &format!("; a context takes about 500 MB, and {free} of {total} are free");
        }
        DeviceError::Failed { card, during, what }
    }

    /// Undoes one opening. With the last one, waits for the card's work and releases everything in reverse order. Errors
    /// are ignored: every call on a lost card fails, and nothing can be done about it. If another card may wait for a lost one
    /// for ever, nothing is released.
    fn close_card(&self, card: usize) {
        let Some(cuda_card) = self.cuda_cards.get(card) else { return };
        let leaves_all = self.leaves_all_to_the_system();
        // Locked to the end: a thread that opens the card meanwhile waits, and finds it closed.
        let mut place = cuda_card.open.write().unwrap_or_else(PoisonError::into_inner);
        match &mut *place {
            Some(open) if open.users > 1 => open.users -= 1,
            // What was left open once may be in use until the end of the process, and so may what it uses.
            _ if leaves_all => {
                place.take();
                self.has_abandoned_card.store(true, Ordering::Relaxed);
            }
            _ => {
                if let (Some(open), Some(device)) = (place.take(), cuda_card.device) {
                    self.shut_down(card, open, device);
                }
            }
        }
    }

    fn shut_down(&self, card: usize, open: OpenCard, device: i32) {
        let cuda_card = &self.cuda_cards[card];
        let no_captures = CAPTURE_LOCK.exclude_captures(cuda_card.context.capture_key(device));
        // SAFETY: the context is still retained, and no thread can enter it any more.
        unsafe { (self.api.cuCtxSetCurrent)(open.context) };
        if !self.becomes_idle(card, open) {
            // Nothing can be released that running work may use: the end of the process does it.
            return self.leave();
        }
        // SAFETY: the stream is ours, and idle.
        unsafe { (self.api.cuStreamDestroy_v2)(open.service_stream) };
        drop(no_captures);
        cuda_card.clock.stop(&self.api);
        cuda_card.gemms.close(&self.blas);
        cuda_card.modules.unload(&self.api);
        self.leave();
        cuda_card.context.close(&self.api, device, open.context);
    }

    /// The part of opening that needs a current context.
    fn enter_new(&self, card: usize, context: Handle) -> Result<OpenCard, DeviceError> {
        let during = "opening the card";
        CURRENT.set(0);
        // SAFETY: the caller has just retained the context.
        self.check(card, during, unsafe { (self.api.cuCtxSetCurrent)(context) })?;
        let (mut least_priority, mut greatest_priority, mut service_stream) = (0, 0, 0);
        // SAFETY: two ints are written.
        let code =
            unsafe { (self.api.cuCtxGetStreamPriorityRange)(&raw mut least_priority, &raw mut greatest_priority) };
        self.check(card, during, code)?;
        // SAFETY: one handle is written.
        let code = unsafe {
            (self.api.cuStreamCreateWithPriority)(&raw mut service_stream, api::STREAM_NON_BLOCKING, least_priority)
        };
        self.check(card, during, code)?;
        let opening = OPENINGS.fetch_add(1, Ordering::Relaxed);
        CURRENT.set(opening);
        Ok(OpenCard { users: 1, context, opening, service_stream, least_priority, greatest_priority })
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        for card in 0..self.cuda_cards.len() {
            while self.opened(card, "closing the card").is_ok() {
                self.close_card(card);
            }
        }
    }
}
