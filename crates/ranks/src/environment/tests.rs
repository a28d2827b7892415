use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Vars<'a> = &'a [(&'a str, &'a str)];

fn read(variables: Vars<'_>) -> Result<Option<RankEnvironment>, EnvironmentError> {
    let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
    RankEnvironment::read(|name| variables.get(name).map(|&value| value.to_owned()))
}

fn rank(variables: Vars<'_>) -> RankEnvironment {
    read(variables).unwrap().unwrap()
}

fn world(rank: u32, size: u32, local_rank: u32, local_size: u32) -> World {
    World { rank, size, local_rank, local_size }
}

/// `changes` to variables; an empty value removes one.
fn changed<'a>(variables: Vars<'a>, changes: Vars<'a>) -> Vec<(&'a str, &'a str)> {
    let unchanged = variables.iter().filter(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
    unchanged.chain(changes.iter().filter(|(_, value)| !value.is_empty())).copied().collect()
}

fn message(variables: Vars<'_>, changes: Vars<'_>) -> String {
    read(&changed(variables, changes)).unwrap_err().to_string()
}

const TORCHRUN_VARS: Vars<'_> = &[
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "node7"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RESTART_COUNT", "3"),
    ("TANDEM_TOKEN", "secret"),
];

const SLURM_VARS: Vars<'_> = &[
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "9"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NTASKS", "11"),
    ("SLURM_NODEID", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "4(x2),3"),
    ("SLURM_STEP_NODELIST", "node[03-05]"),
    ("SLURM_JOB_ID", "123456"),
    ("TANDEM_TOKEN", "secret"),
];

const MPI_VARS: Vars<'_> = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("MASTER_PORT", "1000"),
];

const KUBEFLOW_VARS: Vars<'_> = &[
    ("PET_NODE_RANK", "1"),
    ("PET_NNODES", "2"),
    ("PET_NPROC_PER_NODE", "1"),
    ("PET_MASTER_ADDR", "job-0"),
    ("PET_MASTER_PORT", "29400"),
    ("TANDEM_TOKEN", "secret"),
];

#[test]
fn without_a_launcher_a_process_is_no_rank() {
    for variables in [&[][..], &[("RANK", "1")], &[("WORLD_SIZE", "4")], &[("MASTER_ADDR", "a")]] {
        assert!(read(variables).unwrap().is_none());
    }
}

#[test]
fn torchrun_describes_a_rank_and_its_own_port_is_left_free() {
    let found = rank(TORCHRUN_VARS);
    assert_eq!((found.launcher, found.world), (Launcher::Torchrun, world(5, 8, 1, 4)));
    assert_eq!((found.address.as_str(), found.port, found.restart), ("node7", 29501, 3));
    assert!(found.token.is_some() && !found.is_loopback_only());
    assert_eq!(rank(&changed(TORCHRUN_VARS, &[("TANDEM_PORT", "7000")])).port, 7000);
    assert_eq!(rank(&changed(TORCHRUN_VARS, &[("TORCHELASTIC_RESTART_COUNT", "")])).restart, 0);
}

#[test]
fn torchrun_counts_before_slurm() {
    assert_eq!(rank(&[SLURM_VARS, TORCHRUN_VARS].concat()).launcher, Launcher::Torchrun);
}

#[test]
fn ranks_on_one_machine_meet_at_its_loopback_address_and_need_no_token() {
    let changes = [("LOCAL_RANK", "5"), ("LOCAL_WORLD_SIZE", "8"), ("TANDEM_TOKEN", ""), ("MASTER_ADDR", "")];
    for address in ["", "node7", "localhost"] {
        let mut changes = changes.to_vec();
        changes[3].1 = address;
        let found = rank(&changed(TORCHRUN_VARS, &changes));
        assert!(found.is_loopback_only(), "{address}");
    }
}

#[test]
fn loopback_addresses_are_known() {
    let check = |address: &str, local_size, expected| {
        let mut environment = RankEnvironment::local(0, 4, 1, 0, None);
        environment.address = address.to_owned();
        environment.world.local_size = local_size;
        assert_eq!(environment.is_loopback_only(), expected, "{address}");
    };
    check("127.0.0.1", 4, true);
    check("127.9.9.9", 4, true);
    check("::1", 4, true);
    check("localhost", 4, true);
    check("10.0.0.1", 4, false);
    check("node7", 4, false);
    check("127.0.0.1", 2, false);
}

#[test]
fn a_world_of_one_needs_nothing_else() {
    let found = rank(&[("RANK", "0"), ("WORLD_SIZE", "1")]);
    assert_eq!((found.world, found.is_loopback_only()), (world(0, 1, 0, 1), true));
}

#[test]
fn one_process_per_pod_has_no_local_variables() {
    let found = rank(&changed(TORCHRUN_VARS, &[("LOCAL_RANK", ""), ("LOCAL_WORLD_SIZE", "")]));
    assert_eq!(found.world, world(5, 8, 0, 1));
    let half = message(TORCHRUN_VARS, &[("LOCAL_WORLD_SIZE", "")]);
    assert!(half.starts_with("LOCAL_WORLD_SIZE is not set"), "{half}");
}

#[test]
fn slurm_describes_a_rank_by_its_lists() {
    let found = rank(SLURM_VARS);
    assert_eq!((found.launcher, found.world), (Launcher::Slurm, world(9, 11, 1, 3)));
    assert_eq!((found.address.as_str(), found.port), ("node03", 23456));
    let set = rank(&changed(SLURM_VARS, &[("MASTER_ADDR", "a"), ("MASTER_PORT", "100")]));
    assert_eq!((set.address.as_str(), set.port), ("a", 101));
    let asked = [("SLURM_STEP_TASKS_PER_NODE", ""), ("SLURM_NTASKS_PER_NODE", "4")];
    assert_eq!(rank(&changed(SLURM_VARS, &asked)).world, world(9, 11, 1, 4));
}

#[test]
fn one_task_of_slurm_and_the_script_of_a_batch_job_are_no_ranks() {
    for step in ["", "4294967290", "4294967291"] {
        assert!(read(&changed(SLURM_VARS, &[("SLURM_STEP_ID", step)])).unwrap().is_none(), "{step}");
    }
    assert!(read(&changed(SLURM_VARS, &[("SLURM_NTASKS", "1")])).unwrap().is_none());
    assert!(read(&changed(SLURM_VARS, &[("SLURM_PROCID", "")])).unwrap().is_none());
}

#[test]
fn open_mpi_describes_a_rank_with_the_port_of_the_user() {
    let found = rank(MPI_VARS);
    assert_eq!((found.launcher, found.world), (Launcher::OpenMpi, world(1, 2, 1, 2)));
    assert_eq!((found.is_loopback_only(), found.port), (true, 1001));
    let no_port = message(MPI_VARS, &[("MASTER_PORT", "")]);
    assert!(no_port.starts_with("MASTER_PORT is not set, and Open MPI started this process"), "{no_port}");
    let remote = [("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
    let no_address = message(MPI_VARS, &remote);
    assert!(no_address.starts_with("MASTER_ADDR is not set"), "{no_address}");
}

#[test]
fn kubernetes_describes_a_rank_in_two_ways() {
    let found = rank(KUBEFLOW_VARS);
    assert_eq!((found.launcher, found.world), (Launcher::Kubernetes, world(1, 2, 0, 1)));
    assert_eq!((found.address.as_str(), found.port), ("job-0", 29401));
    let several = message(KUBEFLOW_VARS, &[("PET_NPROC_PER_NODE", "8")]);
    assert!(several.starts_with("PET_NPROC_PER_NODE is \"8\": set it to 1, or start"), "{several}");
    let job = [
        ("JOB_COMPLETION_INDEX", "2"),
        ("WORLD_SIZE", "3"),
        ("MASTER_ADDR", "job-0.svc"),
        ("MASTER_PORT", "99"),
        ("TANDEM_TOKEN", "secret"),
    ];
    let found = rank(&job);
    assert_eq!((found.launcher, found.world, found.port), (Launcher::Kubernetes, world(2, 3, 0, 1), 100));
}

#[test]
fn errors_name_the_variable_and_what_to_set() {
    let check = |changes: Vars<'_>, expected: &str| assert_eq!(message(TORCHRUN_VARS, changes), expected);
    check(&[("RANK", "8")], "RANK is 8 and WORLD_SIZE is 8: set RANK to a number from 0 to 8 - 1");
    check(
        &[("LOCAL_RANK", "4")],
        "LOCAL_RANK is 4 and LOCAL_WORLD_SIZE is 4: set LOCAL_RANK to a number from 0 to 4 - 1",
    );
    check(&[("RANK", "x")], "RANK is \"x\": set it to a whole number");
    check(&[("WORLD_SIZE", "0")], "WORLD_SIZE is \"0\": set it to a number from 1 to 4096");
    check(&[("LOCAL_WORLD_SIZE", "9")], "LOCAL_WORLD_SIZE is \"9\": set it to at most the number of all ranks");
    check(&[("MASTER_PORT", "70000")], "MASTER_PORT is \"70000\": set it to a port, from 1 to 65535");
    check(
        &[("MASTER_ADDR", "")],
        "MASTER_ADDR is not set, and torchrun started this process as a rank: set MASTER_ADDR to the name or IP address \
         of the machine of rank 0",
    );
    check(
        &[("MASTER_PORT", "65535")],
        "MASTER_PORT is 65535, and the ranks meet at the port after it: set TANDEM_PORT to a free port",
    );
    check(
        &[("TANDEM_TOKEN", "")],
        "TANDEM_TOKEN is not set, and 8 ranks meet over the network (4 of them on this machine): set the same secret on \
         every machine, e.g. export TANDEM_TOKEN=$(openssl rand -hex 16)",
    );
    let empty = RankEnvironment::read(|name| match name {
        "TANDEM_TOKEN" => Some(String::new()),
        _ => TORCHRUN_VARS.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned()),
    });
    assert_eq!(empty.unwrap_err(), EnvironmentError::EmptyToken);
}

#[test]
fn no_output_shows_the_token() {
    let found = rank(&changed(TORCHRUN_VARS, &[("TANDEM_TOKEN", "hunter2")]));
    assert!(!format!("{found:?}").contains("hunter2"));
    let long = "hunter2".repeat(1000);
    assert!(!message(TORCHRUN_VARS, &[("TANDEM_TOKEN", &long)]).contains("hunter2"));
}

proptest! {
    #[test]
    fn any_values_are_a_rank_or_an_error(
        values in prop::collection::vec("([0-9]{1,3}|[0-9]\\(x[0-9]\\)(,[0-9])?|[a-z]\\[[0-9]-[0-9]\\]|.{0,6})", 40),
        unset in prop::collection::vec(prop::bool::weighted(0.2), 40), launcher in 0usize..4,
    ) {
        let names = [TORCHRUN_VARS, SLURM_VARS, MPI_VARS, KUBEFLOW_VARS];
        let own = names[launcher].iter().chain(&[("TANDEM_PORT", ""), ("TANDEM_TOKEN", "")]).map(|(name, _)| *name);
        let variables = own.zip(values.iter().zip(&unset)).filter(|(_, (_, unset))| !*unset);
        let variables: Vec<(&str, &str)> = variables.map(|(name, (value, _))| (name, value.as_str())).collect();
        if let Ok(Some(found)) = read(&variables) {
            let World { rank, size, local_rank, local_size } = found.world;
            prop_assert!(rank < size && size <= MAX_RANKS && local_rank < local_size && local_size <= size);
            prop_assert!(found.token.is_some() || found.is_loopback_only());
            prop_assert!(!found.address.is_empty());
        }
    }

    #[test]
    fn a_process_reads_what_its_supervisor_sets(size in 1u32..100, rank: u32, port in 1u16.., restart: u32, with_token: bool) {
        let token = with_token.then(|| Token::new("secret").unwrap());
        let set = RankEnvironment::local(rank % size, size, port, restart, token);
        let variables: BTreeMap<_, _> = set.variables().into_iter().collect();
        let found = RankEnvironment::read(|name| variables.get(name).cloned()).unwrap().unwrap();
        prop_assert_eq!((found.world, found.port, found.restart), (set.world, port, restart));
        prop_assert_eq!(found.address, set.address);
        prop_assert_eq!(found.token.map(|token| token.secret().to_owned()), with_token.then(|| "secret".to_owned()));
    }
}
