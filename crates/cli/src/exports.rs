//! Who reads a run while it goes on: TensorBoard, Prometheus, a trace, and our own alarms.

use std::time::SystemTime;

use tandem_plan::TrainingSettings;
use tandem_runlog::{ExportError, Exporter, Exporters, Prometheus, TensorBoard, Trace, listen_address};
use tandem_train::{RunFolder, TENSORBOARD};

use crate::alarms::{AlarmLog, RunAlarms};
use crate::exit::Exit;
use crate::screen::{Screen, complain};

/// What was asked for cannot be read: said before anything is made.
pub(crate) fn check(prometheus: Option<&str>) -> Result<(), Exit> {
    prometheus.map(listen_address).transpose().map(drop).map_err(refused("--prometheus"))
}

/// Starts them all, and the alarms beside them. Files that were asked for by name must be made; event files that nobody asked
/// for need not, and a port that another program has is no reason not to train.
pub(crate) fn start(
    training: &TrainingSettings,
    folder: &RunFolder,
    screen: &Screen,
    alarm_log: AlarmLog,
) -> Result<Exporters, Exit> {
    let simulated = screen.is_simulated();
    let alarms = RunAlarms::new(move |text: &str| complain(&format!("⚠️ {text}"), simulated), alarm_log);
    let mut list: Vec<Box<dyn Exporter>> = vec![Box::new(alarms)];
    let usual = folder.path().join(TENSORBOARD);
    let place = training.tensorboard_dir.as_ref().map_or(usual.as_path(), |dir| dir.as_ref());
    match TensorBoard::create(place, folder.path(), SystemTime::now()) {
        Ok(files) => list.push(Box::new(files)),
        Err(error) if training.tensorboard_dir.is_some() => return Err(refused("--tensorboard-dir")(error)),
        Err(error) => screen.warn(&error.to_string()),
    }
    if let Some(text) = &training.prometheus {
        match listen_address(text).and_then(Prometheus::serve) {
            Ok(served) => {
                screen.say(&format!("   Prometheus: http://{}/metrics", served.address()))?;
                list.push(Box::new(served));
            }
            Err(error @ ExportError::Bind { .. }) => {
                screen.warn(&format!("--prometheus: {error}. Training goes on without it"));
            }
            Err(error) => return Err(refused("--prometheus")(error)),
        }
    }
    if let Some(file) = &training.trace {
        list.push(Box::new(Trace::create(std::path::Path::new(file)).map_err(refused("--trace"))?));
    }
    let tell = move |problem: &tandem_runlog::ExportProblem| {
        complain(&format!("⚠️ {}: {}", problem.exporter, problem.error), simulated);
    };
    Exporters::start(list, tell).map_err(|error| Exit::Failed(error.into()))
}

/// Ends them, behind the log.
pub(crate) fn finish(exporters: Exporters, screen: &Screen) {
    let summary = exporters.finish();
    if summary.dropped > 0 {
        screen.warn(&format!("other programs did not see all of the run: {} records dropped", summary.dropped));
    }
}

fn refused(flag: &'static str) -> impl Fn(ExportError) -> Exit {
    move |error| Exit::Usage(format!("❌ {flag}: {error}"))
}
