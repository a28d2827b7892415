//! The exporters of a run: TensorBoard, Prometheus, a trace, and the alarms.

use std::time::SystemTime;

use tandem_checkpoint::{RunFolder, TENSORBOARD};
use tandem_plan::TrainingSettings;
use tandem_runlog::{ExportError, Exporter, Exporters, Prometheus, TensorBoard, Trace, listen_address};

use crate::alarms::{AlarmLog, RunAlarms};
use crate::exit::Exit;
use crate::screen::Screen;

/// Refuses a malformed `--prometheus` address before anything is created.
pub(crate) fn check(prometheus: Option<&str>) -> Result<(), Exit> {
    prometheus.map(listen_address).transpose().map(drop).map_err(refused("--prometheus"))
}

/// Starts the exporters and the alarms. A file given by flag must be created, or the run is refused. The default TensorBoard
/// files and a Prometheus port that is in use are warnings: training continues without them. Ranks without a run folder
/// have alarms only: rank 0 exports for all of them.
pub(crate) fn start(
    training: &TrainingSettings,
    folder: Option<&RunFolder>,
    screen: &Screen,
    alarm_log: AlarmLog,
) -> Result<Exporters, Exit> {
    let console = screen.console();
    let alarms = RunAlarms::new(move |text: &str| console.warn(text), alarm_log);
    let mut list: Vec<Box<dyn Exporter>> = vec![Box::new(alarms)];
    if let Some(folder) = folder {
        list.extend(exporters_of_folder(training, folder, screen)?);
    }
    let console = screen.console();
    let report = move |problem: &tandem_runlog::ExportProblem| {
        console.warn(&format!("{}: {}", problem.exporter, problem.error));
    };
    Exporters::start(list, report).map_err(|error| Exit::Failed(error.into()))
}

fn exporters_of_folder(
    training: &TrainingSettings,
    folder: &RunFolder,
    screen: &Screen,
) -> Result<Vec<Box<dyn Exporter>>, Exit> {
    let mut list: Vec<Box<dyn Exporter>> = Vec::new();
    let default_dir = folder.path().join(TENSORBOARD);
    let dir = training.tensorboard_dir.as_ref().map_or(default_dir.as_path(), |dir| dir.as_ref());
    match TensorBoard::create(dir, folder.path(), SystemTime::now()) {
        Ok(files) => list.push(Box::new(files)),
        Err(error) if training.tensorboard_dir.is_some() => return Err(refused("--tensorboard-dir")(error)),
        Err(error) => screen.warn(&error.to_string()),
    }
    if let Some(text) = &training.prometheus {
        match listen_address(text).and_then(Prometheus::serve) {
            Ok(served) => {
                screen.progress(&format!("   Prometheus: http://{}/metrics", served.address()))?;
                list.push(Box::new(served));
            }
            Err(error @ ExportError::Bind { .. }) => {
                screen.warn(&format!("--prometheus: {error}. Training continues without it"));
            }
            Err(error) => return Err(refused("--prometheus")(error)),
        }
    }
    if let Some(file) = &training.trace {
        list.push(Box::new(Trace::create(std::path::Path::new(file)).map_err(refused("--trace"))?));
    }
    Ok(list)
}

/// Stops the exporters, after the log is closed.
pub(crate) fn finish(exporters: Exporters, screen: &Screen) {
    let summary = exporters.finish();
    if summary.dropped > 0 {
        screen.warn(&format!("the exporters are incomplete: {} records dropped", summary.dropped));
    }
}

fn refused(flag: &'static str) -> impl Fn(ExportError) -> Exit {
    move |error| Exit::Usage(format!("❌ {flag}: {error}"))
}
