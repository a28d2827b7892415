//! What the device flags request, before the hardware is considered. Refuses flags that exclude each other.

use crate::gpu_list::GpuList;
use crate::gpu_name::GpuName;
use crate::placement::on_the_cpu;
use crate::refusal::{Reason, Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::value::SettingValue;

/// The requested devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// No device flags: the hardware decides.
    Unspecified,
    /// `--mode cpu`.
    Cpu,
    /// One card for both roles: `--mode single`, `--gpu`, or both flags.
    Single { gpu: Option<GpuName> },
    /// `--data-gpu` and `--model-gpu`, without `--share-gpu`.
    Pair { data: GpuName, model: GpuName },
    /// `--share-gpu`, alone or with `--gpu`.
    Shared { gpu: Option<GpuName> },
    /// `--share-gpu` with `--data-gpu` and `--model-gpu`, which must name one card.
    SharedPair { data: GpuName, model: GpuName },
    /// `--gpus`: a rank on each of them, with both roles.
    Ranks { gpus: GpuList },
}

/// The device flags as given.
struct DeviceFlags<'a> {
    mode: Option<&'static str>,
    pair: Option<CardPair<'a>>,
    gpu: Option<&'a GpuName>,
    gpus: Option<&'a GpuList>,
    share: bool,
}

/// `--data-gpu` and `--model-gpu`.
#[derive(Clone, Copy)]
struct CardPair<'a> {
    data: &'a GpuName,
    model: &'a GpuName,
}

/// The flags that require isolation.
const LIMIT_FLAGS: [Id; 2] = [Id::DataGpuMemory, Id::ModelGpuMemory];

impl Request {
    /// Reads the device flags. Refuses those that exclude each other.
    pub(crate) fn read(settings: &Settings) -> Result<Request, Refusal> {
        let pair = match (settings.given_gpu(Id::DataGpu), settings.given_gpu(Id::ModelGpu)) {
            (Some(data), Some(model)) => Some(CardPair { data, model }),
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => return Err(one_of_the_pair(one)),
        };
        let (gpu, share) = (settings.given_gpu(Id::Gpu), settings.switch(Id::ShareGpu));
        let gpus = settings.given_gpus(Id::Gpus);
        let flags = DeviceFlags { mode: settings.given_choice(Id::Mode), pair, gpu, gpus, share };
        check_mode(&flags)?;
        check_card_flags(&flags)?;
        check_ranks(&flags)?;
        check_isolation(settings, pair.is_some() || share || gpus.is_some())?;
        if let Some(gpus) = gpus {
            return Ok(Request::Ranks { gpus: gpus.clone() });
        }
        let gpu = gpu.cloned();
        Ok(match (pair.map(|CardPair { data, model }| (data.clone(), model.clone())), flags.mode) {
            (Some((data, model)), _) if share => Request::SharedPair { data, model },
            (Some((data, model)), _) => Request::Pair { data, model },
            (None, _) if share => Request::Shared { gpu },
            (None, Some("cpu")) => Request::Cpu,
            (None, Some("single")) => Request::Single { gpu },
            (None, _) if gpu.is_some() => Request::Single { gpu },
            (None, _) => Request::Unspecified,
        })
    }
}

fn one_of_the_pair(one: &GpuName) -> Refusal {
    Refusal::usage(format!(
        "❌ --data-gpu and --model-gpu go together\n   Give both, or --gpu {one} to run everything on {}",
        one.in_words()
    ))
    .suggest(
        Suggestion::new("one GPU for everything")
            .set(Id::Gpu, SettingValue::Gpu(one.clone()))
            .leave_out(&[Id::DataGpu, Id::ModelGpu, Id::EnableMemoryIsolation])
            .leave_out(&LIMIT_FLAGS),
    )
}

fn check_mode(flags: &DeviceFlags<'_>) -> Result<(), Refusal> {
    let DeviceFlags { mode, pair, gpu, gpus, share } = *flags;
    let to_single = Suggestion::new("one GPU for everything")
        .set(Id::Mode, SettingValue::Choice("single"))
        .leave_out(&[Id::DataGpu, Id::ModelGpu, Id::ShareGpu, Id::EnableMemoryIsolation])
        .leave_out(&LIMIT_FLAGS);
    let both = Suggestion::new("one GPU for data, one for the model")
        .set(Id::DataGpu, SettingValue::gpu(0))
        .set(Id::ModelGpu, SettingValue::gpu(1))
        .leave_out(&[Id::ShareGpu, Id::Gpu]);
    match mode {
        Some("auto") => Err(not_measured()),
        Some("cpu") if pair.is_some() || share || gpu.is_some() || gpus.is_some() => {
            Err(Refusal::usage("❌ --mode cpu uses no GPU: remove the GPU flags, or remove --mode")
                .suggest(on_the_cpu()))
        }
        Some("single") if pair.is_some() || share => Err(Refusal::usage(
            "❌ --mode single uses one GPU: remove --data-gpu, --model-gpu and --share-gpu, or remove --mode",
        )
        .suggest(to_single)),
        Some("dual") if share => {
            Err(Refusal::usage("❌ --mode dual uses two GPUs and --share-gpu one: remove one of them").suggest(both))
        }
        Some("dual") if pair.is_none() => {
            Err(Refusal::usage("❌ --mode dual needs --data-gpu and --model-gpu").suggest(both))
        }
        _ => Ok(()),
    }
}

/// Planning is arithmetic and times nothing. For `--mode auto` the caller times the modes first and replaces `auto`.
fn not_measured() -> Refusal {
    Refusal::new(
        Reason::NotMeasured,
        "❌ --mode auto needs the modes to be timed first: give single, dual or cpu, or remove --mode",
    )
    .suggest(Suggestion::new("one GPU for everything").set(Id::Mode, SettingValue::Choice("single")))
    .suggest(Suggestion::new("run on the CPU").set(Id::Mode, SettingValue::Choice("cpu")))
}

fn check_card_flags(flags: &DeviceFlags<'_>) -> Result<(), Refusal> {
    let (Some(CardPair { data, model }), Some(_)) = (flags.pair, flags.gpu) else { return Ok(()) };
    let named = |name: &GpuName| SettingValue::Gpu(name.clone());
    Err(Refusal::usage("❌ --gpu selects the card of single mode: remove it, or remove --data-gpu and --model-gpu")
        .suggest(
            Suggestion::new("").set(Id::DataGpu, named(data)).set(Id::ModelGpu, named(model)).leave_out(&[Id::Gpu]),
        ))
}

/// The flags that `--gpus` excludes.
fn check_ranks(flags: &DeviceFlags<'_>) -> Result<(), Refusal> {
    let DeviceFlags { mode, pair, gpu, gpus: Some(gpus), .. } = *flags else { return Ok(()) };
    let alone = || Suggestion::new("one rank on each of these GPUs").set(Id::Gpus, SettingValue::Gpus(gpus.clone()));
    if pair.is_some() {
        return Err(Refusal::usage(
            "❌ --gpus trains on every GPU, each with both roles: a GPU that prepares data for several processes is not \
             supported yet. Remove --data-gpu and --model-gpu, or remove --gpus",
        )
        .suggest(alone().leave_out(&[Id::DataGpu, Id::ModelGpu, Id::Transfer, Id::Mode])));
    }
    if gpu.is_some() {
        return Err(Refusal::usage("❌ --gpu names one GPU and --gpus several: remove one of them")
            .suggest(alone().leave_out(&[Id::Gpu])));
    }
    match mode {
        Some(mode) => {
            Err(Refusal::usage(format!("❌ --mode {mode} and --gpus exclude each other: remove one of them"))
                .suggest(alone().leave_out(&[Id::Mode])))
        }
        None => Ok(()),
    }
}

fn check_isolation(settings: &Settings, has_separate_roles: bool) -> Result<(), Refusal> {
    let isolated = settings.switch(Id::EnableMemoryIsolation);
    if isolated && !has_separate_roles {
        return Err(Refusal::usage(
            "❌ --enable-memory-isolation requires --data-gpu and --model-gpu (or --share-gpu)",
        )
        .suggest(
            Suggestion::new("two isolated partitions on one card")
                .set(Id::ShareGpu, SettingValue::Switch(true))
                .leave_out(&[Id::Mode]),
        ));
    }
    let limits = LIMIT_FLAGS.into_iter().filter(|id| settings.given(*id).is_some());
    let given: Vec<String> = limits.map(|id| format!("--{}", id.setting().flag)).collect();
    if isolated || given.is_empty() {
        return Ok(());
    }
    let verb = if given.len() == 1 { "requires" } else { "require" };
    Err(Refusal::usage(format!("❌ {} {verb} memory isolation: add --enable-memory-isolation", given.join(" and ")))
        .suggest(Suggestion::new("").set(Id::EnableMemoryIsolation, SettingValue::Switch(true))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Request, Refusal> {
        Request::read(&crate::fixture::settings(line))
    }

    #[test]
    fn flags_and_what_they_request() {
        let check = |line: &str, expected: Request| assert_eq!(read(line), Ok(expected), "{line}");
        check("", Request::Unspecified);
        check("--batch-size 4", Request::Unspecified);
        check("--mode cpu", Request::Cpu);
        check("--mode single", Request::Single { gpu: None });
        let index = GpuName::Index;
        check("--gpu 1", Request::Single { gpu: Some(index(1)) });
        check("--mode single --gpu 1", Request::Single { gpu: Some(index(1)) });
        check("--gpu GPU-8f2d", Request::Single { gpu: Some(GpuName::Uuid("GPU-8f2d".to_owned())) });
        check("--data-gpu 1 --model-gpu 0", Request::Pair { data: index(1), model: index(0) });
        check("--mode dual --data-gpu 0 --model-gpu 1", Request::Pair { data: index(0), model: index(1) });
        check("--data-gpu 0 --model-gpu 0", Request::Pair { data: index(0), model: index(0) });
        check("--share-gpu", Request::Shared { gpu: None });
        check("--share-gpu --gpu 2", Request::Shared { gpu: Some(index(2)) });
        check("--share-gpu --data-gpu 2 --model-gpu 2", Request::SharedPair { data: index(2), model: index(2) });
        check("--share-gpu --enable-memory-isolation --data-gpu-memory 64", Request::Shared { gpu: None });
        check("--gpus all", Request::Ranks { gpus: GpuList::All });
        let two = Request::Ranks { gpus: GpuList::Named(vec![index(1), index(0)]) };
        check("--gpus 1,0 --enable-memory-isolation --data-gpu-memory 64", two);
    }

    #[test]
    fn flags_that_exclude_each_other() {
        let check = |line: &str, part: &str| {
            let refusal = read(line).unwrap_err();
            assert!(refusal.message.contains(part), "{line}: {refusal}");
            assert!(refusal.message.starts_with("❌ "), "{refusal}");
            assert!(refusal.suggestions.iter().all(|s| !s.args().is_empty()), "{refusal}");
        };
        check("--data-gpu 0", "--data-gpu and --model-gpu go together");
        check("--model-gpu 0 --share-gpu", "--data-gpu and --model-gpu go together");
        check("--mode auto", "timed first");
        check("--mode dual", "--mode dual needs --data-gpu and --model-gpu");
        check("--mode dual --share-gpu", "two GPUs");
        check("--mode single --data-gpu 0 --model-gpu 1", "--mode single");
        check("--mode single --share-gpu", "--mode single");
        check("--mode cpu --gpu 0", "--mode cpu uses no GPU");
        check("--mode cpu --data-gpu 0 --model-gpu 1", "--mode cpu uses no GPU");
        check("--gpu 0 --data-gpu 0 --model-gpu 1", "--gpu selects the card of single mode");
        check("--gpus 0,1 --gpu 0", "--gpu names one GPU and --gpus several");
        check("--gpus all --data-gpu 0 --model-gpu 1", "a GPU that prepares data for several processes");
        check("--gpus all --mode single", "--mode single and --gpus exclude each other");
        check("--gpus all --mode cpu", "--mode cpu uses no GPU");
        check("--model-gpu GPU-8f2d", "--gpu GPU-8f2d to run everything on GPU-8f2d");
        let isolation = "--enable-memory-isolation requires --data-gpu and --model-gpu (or --share-gpu)";
        check("--enable-memory-isolation", isolation);
        check("--enable-memory-isolation --gpu 0", isolation);
        check("--data-gpu-memory 64", "--data-gpu-memory requires memory isolation");
        check("--data-gpu 0 --model-gpu 1 --model-gpu-memory auto", "add --enable-memory-isolation");
    }
}
