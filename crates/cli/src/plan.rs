//! `tandem plan`: what this machine has, and how a run would use it.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Value, json};
use tandem_device::{Machine, SimSpec};
use tandem_launch::inventory::{Inventory, Resolved, cards_json, host_facts};
use tandem_plan::speech::SpeechModels;
use tandem_plan::{
    CardFacts, Hardware, Placement, Recommendation, plan_json, print_config, recommend, show_plan,
    show_recommendations, show_short,
};

use crate::args::PlanCall;
use crate::auto;
use crate::data::{self, FoundCorpus};
use crate::exit::Exit;
use crate::screen::{self, Screen};

pub(crate) fn run(call: &PlanCall, screen: &Screen) -> Result<ExitCode, Exit> {
    call.warnings.iter().for_each(|warning| screen.warn(warning));
    if call.recommend {
        return print_recommendations(call, screen);
    }
    let settled = auto::settle(call, screen)?;
    let (mut resolved, _) = resolve(settled.as_ref().unwrap_or(call), screen)?;
    resolved.try_transfer().context("cannot try the transfer between the roles")?;
    let Resolved { machine, hardware, plan } = resolved;
    if call.print_config {
        screen::write(&print_config(&plan))?;
    } else if call.json {
        let mut document = plan_json(&plan, &hardware);
        document["cards"] = cards_json(&machine);
        screen::write_json(&document)?;
    } else {
        let text = if call.quiet { show_short(&plan) } else { show_plan(&plan, &hardware) };
        screen.say(&text)?;
        if call.verbose {
            screen.say(&details(&machine, &hardware))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds the machine and makes the plan, with the corpus it was made for. A refusal shows what was found before it.
pub(crate) fn resolve(call: &PlanCall, screen: &Screen) -> Result<(Resolved, Option<FoundCorpus>), Exit> {
    let site = Inventory::survey(call.sim.clone()).context("cannot read the GPUs")?;
    // Flags that do not go together are refused below, before anybody waits for a corpus to be measured.
    let corpus = match Placement::choose(&call.settings, &site.hardware) {
        Ok(_) => data::open(call, screen)?,
        Err(_) => None,
    };
    let facts = corpus.as_ref().map(|corpus| &corpus.facts);
    let resolved = site.resolve(&call.settings, facts).map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    Ok((resolved, corpus))
}

/// Rows are for simulated cards, whatever this machine has: they are for choosing what to buy or rent.
fn print_recommendations(call: &PlanCall, screen: &Screen) -> Result<ExitCode, Exit> {
    let machine = |count: usize, card_gb: u64| {
        let cards = Machine::simulated(SimSpec::new(count, card_gb << 30));
        Inventory::of(cards).map_or_else(|_| Hardware::without_cards(host_facts()), |site| site.hardware)
    };
    let corpus = data::open(call, screen)?;
    let facts = corpus.as_ref().map(|corpus| &corpus.facts);
    let rows = recommend(&call.settings, &machine, &SpeechModels::of(facts), facts);
    match call.json {
        true => {
            let rows: Vec<Value> = rows.iter().map(row_json).collect();
            screen::write_json(&json!({ "simulated": true, "rows": rows }))?;
        }
        false => screen.say(&show_recommendations(&rows))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What `-v` adds: the libraries behind the cards, what the cards do now, and which reach each other.
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
        let reached: Vec<String> = (0..row.len()).filter(|owner| row[*owner]).map(|owner| owner.to_string()).collect();
        let reached =
            if reached.is_empty() { "no other card".to_owned() } else { format!("GPU {}", reached.join(", ")) };
        text += &format!("Peer access: GPU {reader} reaches {reached}\n");
    }
    text
}

fn row_json(row: &Recommendation) -> Value {
    let fit = row.fit.as_ref();
    json!({
        "cards": row.count,
        "card_gb": row.card_gb,
        "batch_size": fit.map(|fit| fit.batch_size),
        "data_limit_mb": fit.map(|fit| fit.data_limit_mb),
        "model_limit_mb": fit.map(|fit| fit.model_limit_mb),
        "prefetch": fit.map(|fit| fit.prefetch),
        "args": fit.map(|fit| &fit.args),
    })
}
