//! The feed's threads run on the NUMA node of the data card: on a simulated machine with two nodes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::command::{TandemCommand, contains, tandem, tandem_json};
use crate::machine::TempFolder;
use crate::speech::demo;

/// The cores that this process may use, as the system writes them.
fn allowed_list() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

/// A core of this process for each node; the same for both if there is only one.
fn two_cores() -> [String; 2] {
    let list = allowed_list();
    let mut numbers = list.split([',', '-']);
    let first = numbers.next().unwrap();
    [first, numbers.next_back().unwrap_or(first)].map(str::to_owned)
}

/// Files of a machine with two nodes: card 0 is on node 0, card 1 on node 1.
fn two_nodes(folder: &TempFolder, cores: &[String; 2]) -> PathBuf {
    for (node, core) in cores.iter().enumerate() {
        folder.file(&format!("root/sys/devices/system/node/node{node}/cpulist"), format!("{core}\n"));
        folder.file(&format!("root/sys/bus/pci/devices/0000:0{}:00.0/numa_node", node + 1), format!("{node}\n"));
    }
    folder.path("root")
}

/// The cores that each thread of a process may use, by the name of the thread.
fn cores_by_thread(pid: u32) -> BTreeMap<String, String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let cores = |status: String| {
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(str::to_owned));
        list.unwrap_or_default().trim().to_owned()
    };
    tasks.map(|task| (read(&task, "comm").trim().to_owned(), cores(read(&task, "status")))).collect()
}

fn train(sim: &str, dir: &Path, steps: u64) -> TandemCommand {
    let line = format!(
        "train --sim {sim} --data-gpu 1 --model-gpu 0 --model-size nano --batch-size 4 --buffer-size 12 --num-workers 2 \
         --max-steps {steps}"
    );
    TandemCommand::new(&line).arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(dir)
}

#[test]
fn threads_of_the_feed_run_on_the_node_of_the_data_card_and_the_step_does_not() {
    let (folder, cores) = (TempFolder::new(), two_cores());
    let sim = format!("2x24GiB,root={}", two_nodes(&folder, &cores).display());
    let mut child = train(&sim, &folder.path("run"), 100_000).into_std().stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("Model training starting now")));
    let threads = cores_by_thread(child.id());
    Command::new("kill").args(["-KILL", &child.id().to_string()]).status().unwrap();
    child.wait().unwrap();
    for name in ["feed-data", "feed-transfer", "feed-decode-0", "feed-decode-1"] {
        assert_eq!(threads.get(name), Some(&cores[1]), "{name}: {threads:?}");
    }
    assert_eq!(threads.get("tandem"), Some(&allowed_list()), "{threads:?}");
}

#[test]
fn weights_do_not_depend_on_the_node() {
    let (folder, cores) = (TempFolder::new(), two_cores());
    let nodes = format!("2x24GiB,root={}", two_nodes(&folder, &cores).display());
    let weights = |name: &str, sim: &str| {
        let ran = train(sim, &folder.path(name), 3).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        fs::read(folder.path(name).join("checkpoint-00000003/weights.safetensors")).unwrap()
    };
    assert_eq!(weights("placed", &nodes), weights("free", "2x24GiB"));
}

#[test]
fn the_plan_says_where_the_feed_runs_and_warns_of_a_bounce_between_nodes() {
    let (folder, cores) = (TempFolder::new(), two_cores());
    let root = two_nodes(&folder, &cores).display().to_string();
    let line = |link: &str| format!("plan --sim 2x24GiB{link},root={root} --data-gpu 0 --model-gpu 1");
    let between_nodes = "batches bounce from NUMA node 0 to node 1";
    let bounced = tandem(&line("")).out;
    contains(&bounced, &[&format!("NUMA:        data GPU 0: NUMA node 0 (core {})", cores[0]), between_nodes]);
    let linked = tandem(&line(",nvlink")).out;
    contains(&linked, &[&format!("model GPU 1: NUMA node 1 (core {})", cores[1])]);
    assert!(!linked.contains(between_nodes), "{linked}");
    // Peer copies that do not work: the plan falls back to copies through the host.
    let (_, fallen) = tandem_json(&line(",nvlink,refuse-peer-access"));
    assert_eq!(fallen["roles"]["data"]["numa"], json!({ "node": 0, "cores": cores[0] }));
    assert_eq!(fallen["notes"].to_string().contains(between_nodes), fallen["transfer"] == "bounce", "{fallen}");
    let (_, one_node) = tandem_json("plan --sim 2x24GiB --data-gpu 0 --model-gpu 1");
    assert_eq!(one_node["roles"]["data"]["numa"], Value::Null);
}
