//! Shows a finished run in other programs: `cargo run -p tandem-runlog --example export -- run/run.jsonl out [ADDRESS]`.
//!
//! Writes `out/tensorboard/` and `out/trace.json`. With an address, the run's last figures are then served at
//! `http://ADDRESS/metrics` until standard input ends.

#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use tandem_runlog::{Exporter, LogEntry, Prometheus, TensorBoard, Trace, export_log, listen_address, log_began, read};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [log, out, address @ ..] = arguments.as_slice() else { return Err("LOG OUT [ADDRESS]".into()) };
    let (log, out) = (Path::new(log), Path::new(out));
    std::fs::create_dir_all(out)?;

    // One at a time, so that each has a figure of its own; together they need one reading of the log.
    let run = log.parent().unwrap_or(Path::new("."));
    let board = TensorBoard::create(out.join("tensorboard"), run, log_began(log)?)?;
    show("nothing (reading alone)", log, vec![])?;
    show("TensorBoard", log, vec![Box::new(board)])?;
    show("trace", log, vec![Box::new(Trace::create(out.join("trace.json"))?)])?;

    if let [address] = address {
        let mut prometheus = Prometheus::serve(listen_address(address)?)?;
        for entry in read(log)? {
            if let LogEntry::Known(record) = entry? {
                prometheus.take(&record)?;
            }
        }
        println!("http://{}/metrics", prometheus.address());
        std::io::stdin().read_to_end(&mut Vec::new())?;
    }
    Ok(())
}

fn show(name: &str, log: &Path, exporters: Vec<Box<dyn Exporter>>) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    let summary = export_log(log, exporters)?;
    let each_us = begun.elapsed().as_secs_f64() * 1e6 / summary.taken.max(1) as f64;
    println!("{name}: {} records, {each_us:.2} us each", summary.taken);
    summary.problems.iter().for_each(|problem| println!("{problem}"));
    Ok(())
}
