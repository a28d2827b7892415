//! Real cards, through the CUDA driver.
//!
//! Reading order: [`api`] (the functions), [`boot`] (from nothing to a list of cards), this file (contexts: opening,
//! entering and closing a card), [`work`] (everything done inside one), [`modules`] (kernels on a card, with
//! [`nvrtc`] and [`cubin_cache`] behind them), [`gemms`] (with [`cublas`] behind it), [`capture`] (with [`gate`] before
//! it), [`clock`] (when things happened); [`nvml`] reads.
//!
//! Every card is used through its primary context, kept from `open` to `close`. Handles given out are the driver's
//! own, as numbers.

mod api;
mod boot;
mod capture;
mod clock;
mod cubin_cache;
mod cublas;
mod gate;
mod modules;
mod nvml;
pub(crate) mod nvrtc;
mod gemms;
mod status;
mod work;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Instant;

pub(crate) use boot::survey;

use self::api::{Code, DriverApi, Handle};
use self::boot::Booted;
use self::clock::CardClock;
use self::gate::GATE;
use self::gemms::{BlasDoor, Products};
use self::modules::{Cubins, Modules};
use self::nvml::NvmlReader;
use crate::bytes::show;
use crate::card::{Card, CardReading};
use crate::error::DeviceError;
use crate::library::{FoundLibrary, LibraryError, Search};

thread_local! {
    /// Which opening of a card this thread's current context belongs to; 0: none we know of.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Numbers the openings of cards, so that a thread never takes a closed context for one opened later.
static OPENINGS: AtomicU64 = AtomicU64::new(1);

/// The CUDA driver, started, and every card it or the management library knows.
pub(crate) struct CudaDriver {
    api: DriverApi,
    meter: Option<NvmlReader>,
    found: FoundLibrary,
    version: i32,
    cards: Vec<Card>,
    seats: Vec<Seat>,
    cubins: Cubins,
    blas: BlasDoor,
    /// Read once: caches and reports ask for it again and again.
    driver_version: String,
    started: Instant,
}

/// What we keep of one card.
struct Seat {
    /// The driver's handle; `None` for a card hidden from this process.
    device: Option<i32>,
    open: RwLock<Option<OpenCard>>,
    modules: Modules,
    gemms: Products,
    clock: CardClock,
}

#[derive(Clone, Copy, Debug)]
struct OpenCard {
    /// Openings not yet undone: a card opened anew while its last user closes it stays open.
    users: usize,
    context: Handle,
    opening: u64,
    /// For reservations alone: nobody else's work is in front of them.
    service: Handle,
    least_priority: i32,
    greatest_priority: i32,
}

impl CudaDriver {
    /// Finds and starts the driver; `None` when there is no NVIDIA device.
    pub(crate) fn open() -> Result<Option<CudaDriver>, LibraryError> {
        CudaDriver::open_in(&Search::from_env())
    }

    /// The same, looking only where `search` says.
    pub(crate) fn open_in(search: &Search) -> Result<Option<CudaDriver>, LibraryError> {
        let Some(booted) = boot::boot(search)? else { return Ok(None) };
        // Without it cards can still be used: they are then counted along the bus, and nobody says who holds what.
        let meter = NvmlReader::open(search).ok();
        let (cubins, blas) = (Cubins::new(search), BlasDoor::new(search));
        Ok(Some(CudaDriver::assemble(booted, meter, (cubins, blas), &boot::hider(search))))
    }

    fn assemble(
        booted: Booted,
        meter: Option<NvmlReader>,
        (cubins, blas): (Cubins, BlasDoor),
        hidden_by: &str,
    ) -> CudaDriver {
        let listed = meter.as_ref().and_then(|meter| meter.cards().ok()).filter(|cards| !cards.is_empty());
        // A meter that cannot list the cards numbers them otherwise than we do: it is not asked about them.
        let meter = meter.filter(|_| listed.is_some());
        let (cards, devices): (Vec<Card>, Vec<Option<i32>>) =
            boot::seat(listed, &booted.visible, hidden_by).into_iter().unzip();
        let seat = |device| {
            let (open, modules, gemms) = (RwLock::new(None), Modules::default(), Products::default());
            Seat { device, open, modules, gemms, clock: CardClock::default() }
        };
        let cuda = boot::spell(booted.version);
        let driver_version = match meter.as_ref().and_then(NvmlReader::driver_version) {
            Some(driver) => format!("{driver} (CUDA {cuda})"),
            None => format!("CUDA {cuda}"),
        };
        CudaDriver {
            api: booted.api,
            meter,
            found: booted.found,
            version: booted.version,
            cards,
            seats: devices.into_iter().map(seat).collect(),
            cubins,
            blas,
            driver_version,
            started: Instant::now(),
        }
    }

    fn seat(&self, card: usize) -> Result<&Seat, DeviceError> {
        self.seats.get(card).ok_or(DeviceError::NoSuchCard { index: card, found: self.seats.len() })
    }

    fn device(&self, card: usize) -> Result<i32, DeviceError> {
        self.seat(card)?.device.ok_or_else(|| {
            let Card { uuid, hidden_by, .. } = self.cards[card].clone();
            DeviceError::Hidden { index: card, uuid, by: hidden_by.unwrap_or_default() }
        })
    }

    fn opened(&self, card: usize, during: &'static str) -> Result<OpenCard, DeviceError> {
        let open = *self.seat(card)?.open.read().unwrap_or_else(PoisonError::into_inner);
        open.ok_or_else(|| DeviceError::Failed { card, during, what: "the card is not open".to_string() })
    }

    /// Makes the card's context this thread's current one, unless it is already.
    fn enter(&self, card: usize, during: &'static str) -> Result<OpenCard, DeviceError> {
        let open = self.opened(card, during)?;
        if CURRENT.get() != open.opening {
            // SAFETY: the context is kept until `close`, which takes it out of `open` first.
            self.check(card, during, unsafe { (self.api.cuCtxSetCurrent)(open.context) })?;
            CURRENT.set(open.opening);
        }
        Ok(open)
    }

    fn leave(&self) {
        // SAFETY: no context is always a valid choice.
        unsafe { (self.api.cuCtxSetCurrent)(0) };
        CURRENT.set(0);
    }

    fn check(&self, card: usize, during: &'static str, code: Code) -> Result<(), DeviceError> {
        match code {
            0 => Ok(()),
            code if status::is_loss(code) => {
                Err(DeviceError::Lost { card, during, what: status::describe(&self.api, code) })
            }
            code => Err(DeviceError::Failed { card, during, what: status::describe(&self.api, code) }),
        }
    }

    /// [`check`](Self::check) for a call that wanted `asked` bytes of the card, whose context is current.
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

    /// A reading without the management library. CUDA tells only inside a context, so a closed card is opened for
    /// the moment; what the context itself costs is then missing from `free_bytes`, which errs to the safe side.
    fn read_inside(&self, card: usize) -> Result<CardReading, DeviceError> {
        let during = "reading the card";
        let device = self.device(card)?;
        let was_open = self.enter(card, during).is_ok();
        if !was_open {
            let mut context = 0;
            // SAFETY: one handle is written; given back below.
            self.check(card, during, unsafe { (self.api.cuDevicePrimaryCtxRetain)(&raw mut context, device) })?;
            CURRENT.set(0);
            // SAFETY: the context was retained in the line before.
            let _ = unsafe { (self.api.cuCtxSetCurrent)(context) };
        }
        let memory = self.memory(card, during);
        if !was_open {
            self.leave();
            // SAFETY: retained above by this call.
            let _ = unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(device) };
        }
        memory.map(|(free_bytes, total_bytes)| CardReading { free_bytes, total_bytes, ..CardReading::default() })
    }

    fn open_card(&self, card: usize) -> Result<(), DeviceError> {
        let during = "opening the card";
        let device = self.device(card)?;
        let mut place = self.seat(card)?.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = &mut *place {
            open.users += 1;
            return Ok(());
        }
        let mut context = 0;
        // SAFETY: one handle is written; released in `close_card`, or below.
        match unsafe { (self.api.cuDevicePrimaryCtxRetain)(&raw mut context, device) } {
            code @ (api::DEVICE_UNAVAILABLE | api::OUT_OF_MEMORY) => return Err(self.no_context(card, code)),
            code => self.check(card, during, code)?,
        }
        match self.enter_new(card, context).and_then(|open| self.start_clock(card, &open).map(|()| open)) {
            Ok(open) => *place = Some(open),
            Err(error) => {
                self.leave();
                // SAFETY: retained above.
                unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(device) };
                return Err(error);
            }
        }
        Ok(())
    }

    /// Why a card could not be opened although nothing is wrong with it.
    fn no_context(&self, card: usize, code: Code) -> DeviceError {
        let mut what = status::describe(&self.api, code);
        if code == api::DEVICE_UNAVAILABLE {
            what += "; another process may hold the card exclusively";
        } else if let Some(reading) = self.meter.as_ref().and_then(|meter| meter.read(card).ok()) {
            let (free, total) = (show(reading.free_bytes), show(reading.total_bytes));
            what += &format!("; a context takes some 500 MB, and {free} of {total} are free");
        }
        DeviceError::Failed { card, during: "opening the card", what }
    }

    /// Undoes one opening; with the last, waits for the card's work and undoes the rest in reverse. Failures are
    /// left alone: a card that was lost answers nothing but errors, and nobody could do anything about them.
    fn close_card(&self, card: usize) {
        let Some(seat) = self.seats.get(card) else { return };
        // Held to the end: whoever opens the card meanwhile waits, and finds it closed.
        let mut place = seat.open.write().unwrap_or_else(PoisonError::into_inner);
        match &mut *place {
            Some(open) if open.users > 1 => open.users -= 1,
            _ => {
                if let (Some(open), Some(device)) = (place.take(), seat.device) {
                    self.shut_down(seat, open, device);
                }
            }
        }
    }

    fn shut_down(&self, seat: &Seat, open: OpenCard, device: i32) {
        let alone = GATE.alone(device);
        // SAFETY: the context is still retained, and nobody can enter it any more; the stream is ours.
        unsafe {
            (self.api.cuCtxSetCurrent)(open.context);
            (self.api.cuCtxSynchronize)();
            (self.api.cuStreamDestroy_v2)(open.service);
        }
        drop(alone);
        seat.clock.stop(&self.api);
        seat.gemms.close(&self.blas);
        seat.modules.unload(&self.api);
        self.leave();
        // SAFETY: retained once by `open_card`, which this undoes.
        unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(device) };
    }

    /// The parts of opening that need the context to be current.
    fn enter_new(&self, card: usize, context: Handle) -> Result<OpenCard, DeviceError> {
        let during = "opening the card";
        CURRENT.set(0);
        // SAFETY: the caller has just retained the context.
        self.check(card, during, unsafe { (self.api.cuCtxSetCurrent)(context) })?;
        let (mut least_priority, mut greatest_priority, mut service) = (0, 0, 0);
        // SAFETY: two ints are written.
        let code =
            unsafe { (self.api.cuCtxGetStreamPriorityRange)(&raw mut least_priority, &raw mut greatest_priority) };
        self.check(card, during, code)?;
        // SAFETY: one handle is written.
        let code = unsafe {
            (self.api.cuStreamCreateWithPriority)(&raw mut service, api::STREAM_NON_BLOCKING, least_priority)
        };
        self.check(card, during, code)?;
        let opening = OPENINGS.fetch_add(1, Ordering::Relaxed);
        CURRENT.set(opening);
        Ok(OpenCard { users: 1, context, opening, service, least_priority, greatest_priority })
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        for card in 0..self.seats.len() {
            while self.opened(card, "closing the card").is_ok() {
                self.close_card(card);
            }
        }
    }
}
