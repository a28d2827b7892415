//! Which devices make batches, and which one reads them.

use tandem_device::{DeviceKind, Machine, Route, SimSpec};

use crate::options::DeviceChoice;
use crate::{LoaderError, LoaderOptions};

/// The machine, and the card of each role.
pub(crate) struct LoaderDevices {
    pub(crate) machine: Machine,
    pub(crate) data: usize,
    pub(crate) consumer: usize,
    /// A remark, if `auto` found no card.
    pub(crate) note: Option<String>,
}

impl LoaderDevices {
    /// Finds the devices. Opens none.
    pub(crate) fn choose(options: &LoaderOptions) -> Result<LoaderDevices, LoaderError> {
        let given = &options.given;
        let consumer = DeviceChoice::parse("device", &given.device)?;
        let data = given.data_device.as_deref().map(|text| DeviceChoice::parse("data_device", text)).transpose()?;
        // The device of the consumer, as if nothing had been said.
        let data = data.filter(|data| *data != DeviceChoice::Auto);
        if let Some(spec) = &given.sim {
            let spec: SimSpec =
                spec.parse().map_err(|error| LoaderError::Option(format!("sim: {error}, found {spec:?}")))?;
            if [Some(consumer), data].contains(&Some(DeviceChoice::Cpu)) {
                return Err(LoaderError::Option("sim: simulated cards are \"cuda:N\", found \"cpu\"".to_owned()));
            }
            return on_cards(Machine::simulated(spec), consumer, data);
        }
        if consumer == DeviceChoice::Cpu {
            return match data {
                None | Some(DeviceChoice::Cpu) => Ok(on_cpu(None)),
                Some(_) => Err(LoaderError::Option(
                    "data_device: batches for \"cpu\" are made on the CPU: leave data_device out".to_owned(),
                )),
            };
        }
        if data == Some(DeviceChoice::Cpu) {
            let why = "data_device: batches for a GPU are made on a GPU, with decoding on the CPU: leave it out";
            return Err(LoaderError::Option(why.to_owned()));
        }
        match Machine::cuda() {
            // Cards that are hidden from this process are listed, and have no number.
            Ok(Some(machine)) if machine.card_of_ordinal(0).is_some() => on_cards(machine, consumer, data),
            Ok(_) if consumer == DeviceChoice::Auto && data.is_none() => {
                Ok(on_cpu(Some("this process sees no NVIDIA GPU: batches are made on the CPU".to_owned())))
            }
            Ok(_) => {
                let (option, asked) = match &given.data_device {
                    Some(asked) if consumer == DeviceChoice::Auto => ("data_device", asked),
                    _ => ("device", &given.device),
                };
                Err(LoaderError::NoDevice(format!(
                    "{option}: {asked:?} was asked for, and this process sees no NVIDIA GPU; device=\"cpu\" works"
                )))
            }
            Err(error) => Err(LoaderError::NoDevice(format!("{error}\ndevice=\"cpu\" works without a GPU"))),
        }
    }

    /// Whether both roles are on one device.
    pub(crate) fn is_one_device(&self) -> bool {
        self.data == self.consumer
    }

    /// The routes that batches may take, the preferred one first.
    pub(crate) fn routes(&self) -> Result<Vec<Route>, LoaderError> {
        if self.is_one_device() {
            return Ok(vec![Route::Handover]);
        }
        let (data, consumer) = (self.data, self.consumer);
        let are_peers =
            self.machine.can_access_peer(data, consumer)? && self.machine.can_access_peer(consumer, data)?;
        Ok(Route::LADDER.into_iter().filter(|route| are_peers || !route.needs_peer_access()).collect())
    }

    /// A card as the program knows it.
    pub(crate) fn show(&self, card: usize) -> String {
        match self.machine.kind() {
            DeviceKind::Cpu => "cpu".to_owned(),
            DeviceKind::Simulated => format!("simulated:{card}"),
            DeviceKind::Cuda => {
                let ordinal = (0..).find(|ordinal| self.machine.card_of_ordinal(*ordinal) == Some(card));
                ordinal.map_or_else(|| format!("GPU {card}"), |ordinal| format!("cuda:{ordinal}"))
            }
        }
    }
}

fn on_cpu(note: Option<String>) -> LoaderDevices {
    LoaderDevices { machine: Machine::cpu(), data: 0, consumer: 0, note }
}

fn on_cards(
    machine: Machine,
    consumer: DeviceChoice,
    data: Option<DeviceChoice>,
) -> Result<LoaderDevices, LoaderError> {
    let card = |option: &str, choice: DeviceChoice| {
        let ordinal = match choice {
            DeviceChoice::Cuda(ordinal) => ordinal,
            DeviceChoice::Auto | DeviceChoice::Cpu => 0,
        };
        let found = match machine.kind() {
            // Simulated cards have no other number.
            DeviceKind::Simulated => usize::try_from(ordinal).ok().filter(|card| *card < machine.cards().len()),
            DeviceKind::Cpu | DeviceKind::Cuda => machine.card_of_ordinal(ordinal),
        };
        found.ok_or_else(|| {
            let visible = (0..).take_while(|other| machine.card_of_ordinal(*other).is_some()).count();
            let count = if machine.kind() == DeviceKind::Simulated { machine.cards().len() } else { visible };
            LoaderError::NoDevice(format!("{option}: there is no cuda:{ordinal}; this process sees {count} GPUs"))
        })
    };
    let consumer = card("device", consumer)?;
    let data = data.map_or(Ok(consumer), |data| card("data_device", data))?;
    Ok(LoaderDevices { machine, data, consumer, note: None })
}
