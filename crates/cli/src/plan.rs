//! `tandem plan`: the GPUs of this machine, and how a run would use them.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Value, json};
use tandem_device::{Machine, SimSpec};
use tandem_launch::inventory::{Inventory, Resolved, cards_json, host_facts};
use tandem_plan::speech::SpeechModels;
use tandem_plan::{
    CardFacts, Hardware, Placement, Recommendation, num_ranks, plan_json, print_config, recommend, show_plan,
    show_recommendations, show_short,
};
use tandem_ranks::World;

use crate::args::PlanArgs;
use crate::auto::{self, AutoScope};
use crate::data::{self, FoundCorpus};
use crate::exit::Exit;
use crate::pair_checks;
use crate::screen::{self, Screen};

pub(crate) fn run(args: &PlanArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    args.warnings.iter().for_each(|warning| screen.warn(warning));
    if args.recommend {
        return print_recommendations(args, screen);
    }
    let auto_args = auto::choose_mode(args, AutoScope::Ranks, screen)?;
    let args = auto_args.as_ref().unwrap_or(args);
    let inventory = pair_checks::survey(args).context("cannot read the GPUs")?;
    let size = num_ranks(&args.settings, &inventory.hardware).map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    // The plan of the first rank: the others have their own cards, and the same numbers on equal ones.
    let inventory = inventory.with_world(World { rank: 0, size, local_rank: 0, local_size: size });
    // The disk of this machine is not that of a simulated one.
    let inventory = inventory.with_run_folder(&args.settings, args.sim.is_none());
    let (mut resolved, _) = resolve_on(inventory, args, screen)?;
    resolved.try_transfer().context("the transfer test between the roles failed")?;
    let Resolved { machine, hardware, plan, .. } = resolved;
    if args.print_config {
        screen::write(&print_config(&plan))?;
    } else if args.json {
        let mut document = plan_json(&plan, &hardware);
        document["cards"] = cards_json(&machine);
        screen::write_json(&document)?;
    } else {
        screen.print(&if args.quiet { show_short(&plan) } else { show_plan(&plan, &hardware) })?;
        if args.quiet {
            plan.notes.iter().try_for_each(|note| screen.note(note))?;
        }
        if args.verbose {
            screen.print(&details(&machine, &hardware))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Surveys the machine and resolves the plan, with the corpus it is for.
pub(crate) fn resolve(args: &PlanArgs, screen: &Screen) -> Result<(Resolved, Option<FoundCorpus>), Exit> {
    resolve_on(pair_checks::survey(args).context("cannot read the GPUs")?, args, screen)
}

fn resolve_on(inventory: Inventory, args: &PlanArgs, screen: &Screen) -> Result<(Resolved, Option<FoundCorpus>), Exit> {
    // Contradicting flags are refused below; measuring the corpus first would only delay that.
    let corpus = match Placement::choose(&args.settings, &inventory.hardware) {
        Ok(_) => data::open(args, screen)?,
        Err(_) => None,
    };
    let facts = corpus.as_ref().map(|corpus| &corpus.facts);
    let resolved = inventory.resolve(&args.settings, facts).map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    Ok((resolved, corpus))
}

/// Recommends settings: for the cards of this machine, and for simulated cards of common sizes, to choose what to buy or rent.
fn print_recommendations(args: &PlanArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let simulated = |count: usize, card_gb: u64| {
        let cards = Machine::simulated(SimSpec::new(count, card_gb << 30));
        Inventory::of(cards).map_or_else(|_| Hardware::without_cards(host_facts()), |inventory| inventory.hardware)
    };
    let corpus = data::open(args, screen)?;
    let facts = corpus.as_ref().map(|corpus| &corpus.facts);
    let inventory = Inventory::survey(None).context("cannot read the GPUs")?;
    let real = inventory.measured(&args.settings, facts).unwrap_or_else(|refusal| {
        screen.warn(&format!("no settings for the cards of this machine: {}", refusal.message));
        None
    });
    let rows = recommend(&args.settings, &simulated, real.as_ref(), &SpeechModels::of(facts), facts);
    match args.json {
        true => {
            let simulated = rows.iter().all(|row| row.sim.is_some());
            let rows: Vec<Value> = rows.iter().map(row_json).collect();
            screen::write_json(&json!({ "simulated": simulated, "rows": rows }))?;
        }
        false => screen.print(&show_recommendations(&rows))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What `-v` adds: driver, libraries, the state of each GPU, peer access.
pub(crate) fn details(machine: &Machine, hardware: &Hardware) -> String {
    let mut text = format!("Driver:      {}\n", machine.driver_version());
    for library in machine.libraries() {
        let version = library.version.unwrap_or_default();
        text += &format!("Library:     {} {version} at {}\n", library.name, library.path.display());
    }
    for CardFacts { card, reading, .. } in &hardware.cards {
        let busy = reading.busy_percent.map_or("unknown".to_owned(), |percent| format!("{percent} %"));
        let power = reading.power_watts.map_or("unknown".to_owned(), |watts| format!("{watts:.0} W"));
        text += &format!("GPU {}:       bus {}, busy {busy}, power {power}\n", card.index, card.bus_id);
    }
    for (reader, row) in hardware.peer.iter().enumerate() {
        let peers: Vec<String> = (0..row.len()).filter(|owner| row[*owner]).map(|owner| owner.to_string()).collect();
        let access = match peers.is_empty() {
            true => "cannot access other GPUs".to_owned(),
            false => format!("can access GPU {}", peers.join(", ")),
        };
        text += &format!("Peer access: GPU {reader} {access}\n");
    }
    text
}

fn row_json(row: &Recommendation) -> Value {
    let fit = row.fit.as_ref();
    json!({
        "cards": row.count,
        "card_gb": row.card_gb,
        "sim": row.sim,
        "batch_size": fit.map(|fit| fit.batch_size),
        "data_limit_mb": fit.map(|fit| fit.data_limit_mb),
        "model_limit_mb": fit.map(|fit| fit.model_limit_mb),
        "prefetch": fit.map(|fit| fit.prefetch),
        "buffer_size": fit.map(|fit| fit.buffer),
        "args": fit.map(|fit| &fit.args),
    })
}
