//! What the device flags ask for, before anyone looks at the machine. Flags that exclude each other end here.

use crate::placement::on_the_cpu;
use crate::refusal::{Reason, Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::value::SettingValue;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Nothing: the machine decides.
    Unsaid,
    /// `--mode cpu`.
    Cpu,
    /// One card for everything: `--mode single`, `--gpu`, or both.
    Single { gpu: Option<usize> },
    /// `--data-gpu` and `--model-gpu`, without `--share-gpu`.
    Pair { data: usize, model: usize },
    /// `--share-gpu`, with equal indices, `--gpu`, or nothing.
    Shared { gpu: Option<usize> },
}

/// The flags that only make sense with isolation.
const LIMIT_FLAGS: [Id; 2] = [Id::DataGpuMemory, Id::ModelGpuMemory];

impl Request {
    /// Reads the device flags, or says which of them do not go together.
    pub(crate) fn read(settings: &Settings) -> Result<Request, Refusal> {
        let index = |id| settings.given_count(id).map(|n| n as usize);
        let pair = match (index(Id::DataGpu), index(Id::ModelGpu)) {
            (Some(data), Some(model)) => Some((data, model)),
            (None, None) => None,
            (given, other) => return Err(half_a_pair(given.or(other))),
        };
        let (gpu, share) = (index(Id::Gpu), settings.switch(Id::ShareGpu));
        let mode = settings.given_choice(Id::Mode);
        check_mode(mode, pair, share, gpu)?;
        check_card_flags(pair, share, gpu)?;
        check_isolation(settings, pair.is_some() || share)?;
        Ok(match (pair, mode) {
            (Some((data, _)), _) if share => Request::Shared { gpu: Some(data) },
            (Some((data, model)), _) => Request::Pair { data, model },
            (None, _) if share => Request::Shared { gpu },
            (None, Some("cpu")) => Request::Cpu,
            (None, Some("single")) => Request::Single { gpu },
            (None, _) if gpu.is_some() => Request::Single { gpu },
            (None, _) => Request::Unsaid,
        })
    }
}

fn half_a_pair(given: Option<usize>) -> Refusal {
    let one = given.unwrap_or(0);
    Refusal::usage(format!(
        "❌ --data-gpu and --model-gpu go together\n   Give both or neither; GPU {one} for everything is --gpu {one}"
    ))
    .suggest(
        Suggestion::new("one GPU for everything")
            .set(Id::Gpu, SettingValue::Count(one as u64))
            .leave_out(&[Id::DataGpu, Id::ModelGpu, Id::EnableMemoryIsolation])
            .leave_out(&LIMIT_FLAGS),
    )
}

fn check_mode(
    mode: Option<&str>,
    pair: Option<(usize, usize)>,
    share: bool,
    gpu: Option<usize>,
) -> Result<(), Refusal> {
    let to_single = Suggestion::new("one GPU for everything")
        .set(Id::Mode, SettingValue::Choice("single"))
        .leave_out(&[Id::DataGpu, Id::ModelGpu, Id::ShareGpu, Id::EnableMemoryIsolation])
        .leave_out(&LIMIT_FLAGS);
    let both = Suggestion::new("one GPU for data, one for the model")
        .set(Id::DataGpu, SettingValue::Count(0))
        .set(Id::ModelGpu, SettingValue::Count(1))
        .leave_out(&[Id::ShareGpu, Id::Gpu]);
    match mode {
        Some("auto") => Err(not_measured()),
        Some("cpu") if pair.is_some() || share || gpu.is_some() => {
            Err(Refusal::usage("❌ --mode cpu uses no GPU: leave the GPU flags out, or leave --mode out")
                .suggest(on_the_cpu()))
        }
        Some("single") if pair.is_some() || share => Err(Refusal::usage(
            "❌ --mode single is one GPU for everything: leave --data-gpu, --model-gpu and --share-gpu out, \
             or leave --mode out",
        )
        .suggest(to_single)),
        Some("dual") if share => {
            Err(Refusal::usage("❌ --mode dual is two GPUs, --share-gpu is one: leave one of them out").suggest(both))
        }
        Some("dual") if pair.is_none() => {
            Err(Refusal::usage("❌ --mode dual needs --data-gpu and --model-gpu").suggest(both))
        }
        _ => Ok(()),
    }
}

/// A plan is arithmetic, and times nothing: whoever makes one for `--mode auto` has put the mode that was found in its place.
fn not_measured() -> Refusal {
    Refusal::new(
        Reason::NotMeasured,
        "❌ --mode auto is found by timing, before a plan is made: say which mode (single, dual or cpu), \
         or leave --mode out",
    )
    .suggest(Suggestion::new("one GPU for everything").set(Id::Mode, SettingValue::Choice("single")))
    .suggest(Suggestion::new("run on the CPU").set(Id::Mode, SettingValue::Choice("cpu")))
}

fn check_card_flags(pair: Option<(usize, usize)>, share: bool, gpu: Option<usize>) -> Result<(), Refusal> {
    let Some((data, model)) = pair else { return Ok(()) };
    let index = |i: usize| SettingValue::Count(i as u64);
    if gpu.is_some() {
        return Err(Refusal::usage(
            "❌ --gpu is the card of single mode: leave it out with --data-gpu and --model-gpu",
        )
        .suggest(
            Suggestion::new("").set(Id::DataGpu, index(data)).set(Id::ModelGpu, index(model)).leave_out(&[Id::Gpu]),
        ));
    }
    if share && data != model {
        return Err(Refusal::usage(format!(
            "❌ --share-gpu puts both roles on one card, and {data} and {model} are two: \
             give equal indices, or leave --share-gpu out"
        ))
        .suggest(
            Suggestion::new("both roles on one card")
                .set(Id::ModelGpu, index(data))
                .set(Id::ShareGpu, SettingValue::Switch(true)),
        ));
    }
    Ok(())
}

fn check_isolation(settings: &Settings, has_roles_apart: bool) -> Result<(), Refusal> {
    let isolated = settings.switch(Id::EnableMemoryIsolation);
    if isolated && !has_roles_apart {
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
    let written: Vec<String> = limits.map(|id| format!("--{}", id.setting().flag)).collect();
    if isolated || written.is_empty() {
        return Ok(());
    }
    let verb = if written.len() == 1 { "is a limit" } else { "are limits" };
    Err(Refusal::usage(format!(
        "❌ {} {verb} of memory isolation, which is off: add --enable-memory-isolation",
        written.join(" and ")
    ))
    .suggest(Suggestion::new("").set(Id::EnableMemoryIsolation, SettingValue::Switch(true))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Request, Refusal> {
        Request::read(&crate::fixture::settings(line))
    }

    #[test]
    fn what_the_flags_ask_for() {
        let check = |line: &str, expected: Request| assert_eq!(read(line), Ok(expected), "{line}");
        check("", Request::Unsaid);
        check("--batch-size 4", Request::Unsaid);
        check("--mode cpu", Request::Cpu);
        check("--mode single", Request::Single { gpu: None });
        check("--gpu 1", Request::Single { gpu: Some(1) });
        check("--mode single --gpu 1", Request::Single { gpu: Some(1) });
        check("--data-gpu 1 --model-gpu 0", Request::Pair { data: 1, model: 0 });
        check("--mode dual --data-gpu 0 --model-gpu 1", Request::Pair { data: 0, model: 1 });
        check("--data-gpu 0 --model-gpu 0", Request::Pair { data: 0, model: 0 });
        check("--share-gpu", Request::Shared { gpu: None });
        check("--share-gpu --gpu 2", Request::Shared { gpu: Some(2) });
        check("--share-gpu --data-gpu 2 --model-gpu 2", Request::Shared { gpu: Some(2) });
        check("--share-gpu --enable-memory-isolation --data-gpu-memory 64", Request::Shared { gpu: None });
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
        check("--mode auto", "found by timing");
        check("--mode dual", "--mode dual needs --data-gpu and --model-gpu");
        check("--mode dual --share-gpu", "two GPUs");
        check("--mode single --data-gpu 0 --model-gpu 1", "--mode single");
        check("--mode single --share-gpu", "--mode single");
        check("--mode cpu --gpu 0", "--mode cpu uses no GPU");
        check("--mode cpu --data-gpu 0 --model-gpu 1", "--mode cpu uses no GPU");
        check("--gpu 0 --data-gpu 0 --model-gpu 1", "--gpu is the card of single mode");
        check("--share-gpu --data-gpu 0 --model-gpu 1", "--share-gpu puts both roles on one card");
        let isolation = "--enable-memory-isolation requires --data-gpu and --model-gpu (or --share-gpu)";
        check("--enable-memory-isolation", isolation);
        check("--enable-memory-isolation --gpu 0", isolation);
        check("--data-gpu-memory 64", "--data-gpu-memory is a limit of memory isolation");
        check("--data-gpu 0 --model-gpu 1 --model-gpu-memory auto", "add --enable-memory-isolation");
    }
}
