//! The report of a pair as a short table for the terminal.

use serde_json::Value;

use crate::bench::table::TextTable;

/// The table, and a line for each of the other measurements.
pub(super) fn show(document: &Value) -> String {
    let [a, b] = [0, 1].map(|at| format!("GPU {}", document["cards"][at]["gpu"]));
    let [there, back] = [format!("{a} → {b}"), format!("{b} → {a}")];
    let mut table = TextTable::new("Routes:", &["", &there, &back]);
    let (forward, backward) = (&document["routes"]["a_to_b"], &document["routes"]["b_to_a"]);
    for (to, from) in rows(forward).zip(rows(backward)) {
        let name = to["route"].as_str().unwrap_or_default();
        table.row(vec![name.to_owned(), speed(to), speed(from)]);
        for (direction, row) in [(&there, to), (&back, from)] {
            if let Some(reason) = error(row) {
                table.note(format!("{name}, {direction}: {reason}"));
            }
        }
    }
    let lines = [
        cards(document),
        table.show().trim_end().to_owned(),
        line("Peer access:", &document["peer_access"], |found| {
            format!("{there} {}; {back} {}", access(&found["a_to_b"]), access(&found["b_to_a"]))
        }),
        line("Memory:", &document["driver_memory"], |found| memory(found, [&a, &b])),
        line("Events:", &document["event_round_trip"], |found| {
            format!("{there} {}; {back} {}", round_trip(&found["a_to_b"]), round_trip(&found["b_to_a"]))
        }),
        line("Clocks:", &document["clocks"], |found| {
            let [ppm, uncertainty, seconds] =
                ["b_ahead_of_a_ppm", "uncertainty_ppm", "seconds"].map(|name| number(&found[name]));
            format!("{b} ahead of {a} by {ppm:.1} ppm (± {uncertainty:.1}), over {seconds:.2} s")
        }),
        line("Fault:", &document["trap_on_a"], |found| fault(found, [&a, &b])),
    ];
    lines.join("\n")
}

/// `Title:       text`, or why there is none.
fn line(title: &str, field: &Value, text: impl FnOnce(&Value) -> String) -> String {
    let text = error(field).map_or_else(|| text(field), |reason| format!("not measured: {reason}"));
    format!("{title:<12} {text}")
}

fn cards(document: &Value) -> String {
    let driver = document["driver"].as_str().unwrap_or_default();
    let card = |card: &Value| {
        let pci = &card["pci"];
        let link = match (pci["link_speed"].as_str(), pci["link_width"].as_str()) {
            (Some(speed), Some(width)) => format!(", {speed} x{width}"),
            _ => String::new(),
        };
        let node = pci["numa_node"].as_u64().map(|node| format!(", NUMA node {node}")).unwrap_or_default();
        format!("GPU {}: {}{link}{node}", card["gpu"], card["name"].as_str().unwrap_or_default())
    };
    let cards: Vec<String> = rows(&document["cards"]).map(card).collect();
    format!("Cards:       {}; driver {driver}", cards.join("; "))
}

fn speed(row: &Value) -> String {
    match row["gb_per_s"].as_f64() {
        Some(gb_per_s) => format!("{gb_per_s:.1} GB/s"),
        None => "failed".to_owned(),
    }
}

fn access(found: &Value) -> String {
    match found["can_access"] == true {
        true if found["native_atomics"] == true => format!("yes, native atomics, rank {}", found["performance_rank"]),
        true => format!("yes, rank {}", found["performance_rank"]),
        false => "no".to_owned(),
    }
}

fn memory(found: &Value, names: [&str; 2]) -> String {
    let card = |at: usize| {
        let field = ["a_bytes", "b_bytes"][at];
        let mb = |state: &str| number(&found[state][field]) / (1 << 20) as f64;
        let alone = mb(["a_open", "b_open"][at]);
        let peer = match error(&found["peer_access"]) {
            None => format!(", {:.0} MB with peer access", mb("peer_access")),
            Some(_) => String::new(),
        };
        format!("{} {alone:.0} MB alone, {:.0} MB with both open{peer}", names[at], mb("both_open"))
    };
    format!("of the driver: {}; {}", card(0), card(1))
}

fn round_trip(found: &Value) -> String {
    format!("p50 {:.1} µs, p99 {:.1} µs", number(&found["p50_us"]), number(&found["p99_us"]))
}

fn fault(found: &Value, [a, b]: [&str; 2]) -> String {
    let ended = found["b_wait"].as_str().unwrap_or_default();
    let reason = found["b_error"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{a} faults; the wait of {b} {ended} after {:.0} ms{reason}", number(&found["after_ms"]))
}

fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn error(field: &Value) -> Option<&str> {
    field["error"].as_str()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}
