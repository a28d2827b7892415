//! Who this process is: the variables that a launcher sets for each rank.

use std::fmt;
use std::net::IpAddr;

use crate::Token;

mod error;
mod slurm;

pub use error::EnvironmentError;

use slurm::{first_host, tasks_on_node};

/// The most ranks of a run. Rank 0 has a thread and two connections for each.
pub(crate) const MAX_RANKS: u32 = 4096;

/// The address of a run on one machine.
const LOOPBACK: &str = "127.0.0.1";

/// Ports that are derived from Slurm's job id: 10,000 of them, below the ports that Linux gives to clients.
const SLURM_FIRST_PORT: u16 = 20_000;
const SLURM_NUM_PORTS: u64 = 10_000;

/// Steps from this number on are Slurm's own: batch scripts, interactive shells.
const SLURM_SPECIAL_STEPS: u64 = 0xFFFF_FFF0;

/// The place of a process among the ranks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// This process, from 0.
    pub rank: u32,
    /// All processes of the run.
    pub size: u32,
    /// This process among those on its machine, from 0.
    pub local_rank: u32,
    /// The processes on this machine.
    pub local_size: u32,
}

impl World {
    /// The only process of its run.
    pub const ALONE: World = World { rank: 0, size: 1, local_rank: 0, local_size: 1 };

    /// Whether all ranks are on one machine.
    pub fn is_local(&self) -> bool {
        self.local_size == self.size
    }
}

impl fmt::Display for World {
    /// `rank 1 of 4`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

/// What started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// A program that built the environment itself: [`RankEnvironment::local`].
    Local,
    /// torchrun, or a launcher that sets the same variables.
    Torchrun,
    /// Slurm's `srun`.
    Slurm,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Kubernetes: the training operator of Kubeflow, or an indexed job.
    Kubernetes,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Local => "this program",
            Launcher::Torchrun => "torchrun",
            Launcher::Slurm => "Slurm",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Kubernetes => "Kubernetes",
        })
    }
}

/// A rank as its launcher describes it: its place, and where the ranks meet.
#[derive(Clone, Debug)]
pub struct RankEnvironment {
    /// What started this process.
    pub launcher: Launcher,
    /// Its place among the ranks.
    pub world: World,
    /// The machine of rank 0: a name or an IP address.
    pub address: String,
    /// The port at which rank 0 listens.
    pub port: u16,
    /// How often the launcher has started the ranks again.
    pub restart: u32,
    /// The secret of the run. Only ranks on one machine need none.
    pub token: Option<Token>,
}

impl RankEnvironment {
    /// Reads the variables of the launcher through `get`. `None` when no launcher started this process as a rank.
    ///
    /// The first of these whose variables are set: torchrun, Slurm with more than one task, Open MPI, Kubernetes. The ranks
    /// meet at `TANDEM_PORT`, or else at the port after `MASTER_PORT`, because torchrun itself listens at that one, or else,
    /// with Slurm, at 20000 + job id % 10000. Ranks on one machine meet at its loopback address, whatever `MASTER_ADDR` is;
    /// others need the same `TANDEM_TOKEN`.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<RankEnvironment>, EnvironmentError> {
        let has = |name: &str| get(name).is_some();
        let (launcher, names) = if has("RANK") && has("WORLD_SIZE") {
            (Launcher::Torchrun, TORCHRUN)
        // A step of `srun`. The script of a batch job and an interactive shell run once, although they have a rank's number.
        } else if get("SLURM_STEP_ID").and_then(|id| id.parse::<u64>().ok()).is_some_and(|id| id < SLURM_SPECIAL_STEPS)
            && has("SLURM_PROCID")
            && number(&get, "SLURM_NTASKS")?.is_some_and(|tasks| tasks > 1)
        {
            (Launcher::Slurm, SLURM)
        } else if has("OMPI_COMM_WORLD_RANK") && has("OMPI_COMM_WORLD_SIZE") {
            (Launcher::OpenMpi, OPEN_MPI)
        } else if has("PET_NODE_RANK") && has("PET_NNODES") {
            (Launcher::Kubernetes, KUBEFLOW)
        } else if has("JOB_COMPLETION_INDEX") && has("WORLD_SIZE") {
            (Launcher::Kubernetes, INDEXED_JOB)
        } else {
            return Ok(None);
        };
        Variables { get, launcher, names }.read().map(Some)
    }

    /// A rank of a run on this machine, for a supervisor that starts the ranks itself.
    pub fn local(rank: u32, size: u32, port: u16, restart: u32, token: Option<Token>) -> RankEnvironment {
        let world = World { rank, size, local_rank: rank, local_size: size };
        RankEnvironment { launcher: Launcher::Local, world, address: LOOPBACK.to_owned(), port, restart, token }
    }

    /// The variables that describe this rank to a process that calls [`read`](RankEnvironment::read): what a supervisor sets
    /// for each process it starts. They include the token.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let World { rank, size, local_rank, local_size } = self.world;
        let mut variables = vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", size.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", local_size.to_string()),
            ("MASTER_ADDR", self.address.clone()),
            ("TANDEM_PORT", self.port.to_string()),
            ("TORCHELASTIC_RESTART_COUNT", self.restart.to_string()),
        ];
        variables.extend(self.token.as_ref().map(|token| ("TANDEM_TOKEN", token.secret().to_owned())));
        variables
    }

    /// Whether all ranks are on one machine and meet at its loopback address, which no other machine can reach.
    pub fn is_loopback_only(&self) -> bool {
        self.world.is_local() && is_loopback(&self.address)
    }

    /// Checks what [`read`](RankEnvironment::read) guarantees, for an environment that was built by hand.
    pub(crate) fn check(&self) -> Result<(), EnvironmentError> {
        let World { rank, size, local_rank, local_size } = self.world;
        check_range("RANK", rank, "WORLD_SIZE", size)?;
        check_range("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_size)?;
        match self.token.is_none() && size > 1 && !self.is_loopback_only() {
            true => Err(EnvironmentError::NoToken { size, local_size }),
            false => Ok(()),
        }
    }
}

/// The names of a launcher's variables. Where a list has several, the first that is set counts.
#[derive(Clone, Copy)]
struct Names {
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
    address: &'static str,
    port: &'static str,
}

const TORCHRUN: Names = Names {
    rank: "RANK",
    size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_size: "LOCAL_WORLD_SIZE",
    address: "MASTER_ADDR",
    port: "MASTER_PORT",
};
const SLURM: Names = Names {
    rank: "SLURM_PROCID",
    size: "SLURM_NTASKS",
    local_rank: "SLURM_LOCALID",
    local_size: "SLURM_STEP_TASKS_PER_NODE",
    ..TORCHRUN
};
const OPEN_MPI: Names = Names {
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    ..TORCHRUN
};
const KUBEFLOW: Names = Names {
    rank: "PET_NODE_RANK",
    size: "PET_NNODES",
    local_size: "PET_NPROC_PER_NODE",
    address: "PET_MASTER_ADDR",
    port: "PET_MASTER_PORT",
    ..TORCHRUN
};
const INDEXED_JOB: Names = Names { rank: "JOB_COMPLETION_INDEX", ..TORCHRUN };

/// Slurm's variables with the tasks of each node, the most exact first: of the step, of the job, and what was asked for.
const SLURM_TASKS: [&str; 3] = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"];
const SLURM_NODES: [&str; 3] = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];

/// The variables of one launcher.
struct Variables<G> {
    get: G,
    launcher: Launcher,
    names: Names,
}

impl<G: Fn(&str) -> Option<String>> Variables<G> {
    fn read(&self) -> Result<RankEnvironment, EnvironmentError> {
        let (rank, size) = (self.required(self.names.rank)?, self.required(self.names.size)?);
        if !(1..=MAX_RANKS).contains(&size) {
            return Err(invalid(self.names.size, size, "a number from 1 to 4096"));
        }
        check_range(self.names.rank, rank, self.names.size, size)?;
        let (local_rank, local_size) = self.local()?;
        check_range(self.names.local_rank, local_rank, self.names.local_size, local_size)?;
        if local_size > size {
            return Err(invalid(self.names.local_size, local_size, "at most the number of all ranks"));
        }
        let world = World { rank, size, local_rank, local_size };
        let environment = RankEnvironment {
            launcher: self.launcher,
            world,
            address: self.address(world)?,
            port: self.port(world)?,
            restart: self.number("TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0),
            token: (self.get)("TANDEM_TOKEN").map(Token::new).transpose()?,
        };
        environment.check().map(|()| environment)
    }

    /// The rank among those on this machine, and their number.
    fn local(&self) -> Result<(u32, u32), EnvironmentError> {
        match self.launcher {
            Launcher::Slurm => Ok((self.required(self.names.local_rank)?, self.slurm_local_size()?)),
            Launcher::Kubernetes => self.one_process_per_pod(),
            // The training operator of Kubeflow sets torchrun's variables without these, for one process in each pod.
            _ if [self.names.local_rank, self.names.local_size].iter().all(|name| (self.get)(name).is_none()) => {
                Ok((0, 1))
            }
            _ => Ok((self.required(self.names.local_rank)?, self.required(self.names.local_size)?)),
        }
    }

    fn one_process_per_pod(&self) -> Result<(u32, u32), EnvironmentError> {
        let variable = KUBEFLOW.local_size;
        match (self.get)(variable) {
            Some(found) if self.names.local_size == variable && found.trim() != "1" => {
                Err(invalid(variable, found, "1, or start several processes in each pod with torchrun"))
            }
            _ => Ok((0, 1)),
        }
    }

    fn slurm_local_size(&self) -> Result<u32, EnvironmentError> {
        let set = SLURM_TASKS.iter().find_map(|&name| (self.get)(name).map(|value| (name, value)));
        let (variable, list) =
            set.ok_or_else(|| self.missing(SLURM_TASKS[0], "the tasks of each node, e.g. 4(x2),3"))?;
        // What was asked for is one number for all nodes.
        let node = if variable == SLURM_TASKS[2] { 0 } else { self.number("SLURM_NODEID")?.unwrap_or(0) };
        tasks_on_node(&list, node)
            .ok_or_else(|| invalid(variable, list, "the tasks of each node of SLURM_NODEID, e.g. 4(x2),3"))
    }

    fn address(&self, world: World) -> Result<String, EnvironmentError> {
        if world.is_local() {
            return Ok(LOOPBACK.to_owned());
        }
        match (self.get)(self.names.address).map(|address| address.trim().to_owned()) {
            Some(address) if !address.is_empty() => Ok(address),
            _ if self.launcher == Launcher::Slurm => self.slurm_first_host(),
            _ => Err(self.missing(self.names.address, "the name or IP address of the machine of rank 0")),
        }
    }

    fn slurm_first_host(&self) -> Result<String, EnvironmentError> {
        let set = SLURM_NODES.iter().find_map(|&name| (self.get)(name).map(|value| (name, value)));
        let missing = || self.missing(self.names.address, "the name or IP address of the machine of rank 0");
        let (variable, list) = set.ok_or_else(missing)?;
        first_host(&list).ok_or_else(|| invalid(variable, list, "a node list, e.g. node[03-07,9]; or set MASTER_ADDR"))
    }

    fn port(&self, world: World) -> Result<u16, EnvironmentError> {
        if let Some(port) = self.port_number("TANDEM_PORT")? {
            return Ok(port);
        }
        if let Some(port) = self.port_number(self.names.port)? {
            return port.checked_add(1).ok_or(EnvironmentError::NoNextPort { variable: self.names.port });
        }
        match self.launcher {
            Launcher::Slurm => self.slurm_port(),
            // A rank on its own opens no socket.
            _ if world.size == 1 => Ok(0),
            _ => {
                Err(self
                    .missing(self.names.port, "a port that is free on the machine of rank 0, as is the port after it"))
            }
        }
    }

    /// Two jobs on one node rarely get the same port.
    fn slurm_port(&self) -> Result<u16, EnvironmentError> {
        let expected = "the number of the job, or set MASTER_PORT";
        let id = (self.get)("SLURM_JOB_ID").ok_or_else(|| self.missing("SLURM_JOB_ID", expected))?;
        let number: u64 = id.trim().parse().map_err(|_| invalid("SLURM_JOB_ID", id, expected))?;
        Ok(SLURM_FIRST_PORT + (number % SLURM_NUM_PORTS) as u16)
    }

    fn port_number(&self, variable: &'static str) -> Result<Option<u16>, EnvironmentError> {
        let Some(found) = (self.get)(variable) else { return Ok(None) };
        match found.trim().parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(invalid(variable, found, "a port, from 1 to 65535")),
        }
    }

    fn required(&self, variable: &'static str) -> Result<u32, EnvironmentError> {
        self.number(variable)?.ok_or_else(|| self.missing(variable, "a whole number"))
    }

    fn number(&self, variable: &'static str) -> Result<Option<u32>, EnvironmentError> {
        number(&self.get, variable)
    }

    fn missing(&self, variable: &'static str, expected: &'static str) -> EnvironmentError {
        EnvironmentError::Missing { launcher: self.launcher, variable, expected }
    }
}

fn number(get: impl Fn(&str) -> Option<String>, variable: &'static str) -> Result<Option<u32>, EnvironmentError> {
    let Some(found) = get(variable) else { return Ok(None) };
    found.trim().parse().map(Some).map_err(|_| invalid(variable, found, "a whole number"))
}

fn invalid(variable: &'static str, found: impl ToString, expected: &'static str) -> EnvironmentError {
    EnvironmentError::Invalid { variable, found: found.to_string(), expected }
}

fn check_range(
    variable: &'static str,
    rank: u32,
    size_variable: &'static str,
    size: u32,
) -> Result<(), EnvironmentError> {
    match rank < size {
        true => Ok(()),
        false => Err(EnvironmentError::OutOfRange { variable, rank, size_variable, size }),
    }
}

fn is_loopback(address: &str) -> bool {
    address.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests;
