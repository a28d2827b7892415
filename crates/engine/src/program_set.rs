//! The programs of one model over one set of parameters, and every byte they will take.

use std::sync::Arc;

use tandem_device::bytes::{BLOCK_ALIGN, round_up};
use tandem_device::{DType, DeviceKind, Gemm};

use crate::error::EngineError;
use crate::graph::{Graph, ParameterSpan};
use crate::lower::Launch;
use crate::parameters::Parameters;
use crate::program::{NamedLayout, Program};
use crate::tensor::accumulator;

/// A program of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub(crate) usize);

/// A part of a session's memory that is taken as one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Parameters, or what is kept for each of them.
    ParameterSpan(ParameterSpan),
    /// What lasts from run to run.
    States,
    /// The numbers of all programs that never change.
    Constants,
    /// What GEMMs may use on the way, on cards.
    Workspace,
    /// What one program needs while it runs: host values, batch, results, activations.
    Working,
}

/// What GEMMs may use on the way, on cards: each of the two lines of a recording has its own.
pub const WORKSPACE_BYTES: u64 = 2 * Gemm::WORKSPACE_BYTES;

/// A named amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLine {
    /// Which part of a session's memory it is.
    pub kind: MemoryKind,
    /// What it is called in memory tables.
    pub name: &'static str,
    /// How much of it.
    pub bytes: u64,
}

/// Programs over one set of parameters. A pure value: nothing is taken from any device.
#[derive(Clone, Debug)]
pub struct ProgramSet {
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) precision: DType,
    pub(crate) spans: Vec<ParameterSpan>,
    pub(crate) states: NamedLayout,
    pub(crate) programs: Vec<Program>,
    pub(crate) names: Vec<String>,
    /// Programs that may be taken in while a session runs, at once.
    pub(crate) late_places: usize,
}

impl ProgramSet {
    /// No programs yet. `spans` is what is kept for every parameter; [`ParameterSpan::Compute`] is there by itself when `precision`
    /// is bf16.
    pub fn new(parameters: Arc<Parameters>, precision: DType, spans: &[ParameterSpan]) -> ProgramSet {
        let narrow = precision == DType::BF16;
        let kept = |span: &ParameterSpan| match span {
            ParameterSpan::Parameters => true,
            ParameterSpan::Compute => narrow,
            other => spans.contains(other),
        };
        let spans = ParameterSpan::ALL.into_iter().filter(kept).collect();
        let (states, programs, names) = (NamedLayout::default(), Vec::new(), Vec::new());
        ProgramSet { parameters, precision, spans, states, programs, names, late_places: 0 }
    }

    /// Plans and lowers `graph`. `inputs` is where the fields of its batch lie.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        graph: &Graph,
        inputs: &NamedLayout,
    ) -> Result<ProgramId, EngineError> {
        assert_eq!(graph.precision(), self.precision, "all programs of a set compute in one element type");
        self.programs.push(Program::compile(graph, inputs, &mut self.states)?);
        self.names.push(name.into());
        Ok(ProgramId(self.programs.len() - 1))
    }

    /// Leaves room for `places` programs that are written while a session runs ([`Session::admit`]), each with as many
    /// constants as the largest of the set.
    ///
    /// [`Session::admit`]: crate::Session::admit
    pub fn leave_room(&mut self, places: usize) {
        self.late_places = places;
    }

    /// Plans and lowers a program for [`Session::admit`]: it has no states but those of the set.
    ///
    /// [`Session::admit`]: crate::Session::admit
    pub fn compile_late(&self, graph: &Graph, inputs: &NamedLayout) -> Result<Program, EngineError> {
        assert_eq!(graph.precision(), self.precision, "all programs of a set compute in one element type");
        let mut states = self.states.clone();
        let program = Program::compile(graph, inputs, &mut states)?;
        assert_eq!(states, self.states, "states were taken when the session was made");
        Ok(program)
    }

    /// Where the constants of late programs begin, and how many bytes each may have.
    pub(crate) fn late_constants(&self) -> (u64, u64) {
        let bytes = || self.programs.iter().map(|program| program.constant_bytes);
        (bytes().sum(), if self.late_places == 0 { 0 } else { bytes().max().unwrap_or(0) })
    }

    /// One of the programs.
    pub fn program(&self, id: ProgramId) -> &Program {
        &self.programs[id.0]
    }

    /// What a program is called.
    pub fn name(&self, id: ProgramId) -> &str {
        &self.names[id.0]
    }

    /// The parameters the programs share.
    pub fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    /// What is kept for every parameter.
    pub fn spans(&self) -> &[ParameterSpan] {
        &self.spans
    }

    /// What the programs compute in.
    pub fn precision(&self) -> DType {
        self.precision
    }

    /// Every byte a session will take on a device of this kind, in whole blocks, in the order it takes them. Programs take
    /// turns in one working memory: the largest counts. Cards have workspaces for GEMMs besides, for all programs;
    /// simulated ones too, which do not use it, so that what fits there fits the real one.
    pub fn lines(&self, kind: DeviceKind) -> Vec<MemoryLine> {
        let multiplies = |program: &Program| program.steps.iter().any(|step| matches!(step, Launch::Gemm { .. }));
        let has_workspace = kind != DeviceKind::Cpu && self.programs.iter().any(multiplies);
        let mut lines: Vec<MemoryLine> = self.spans.iter().map(|&span| self.span_line(span)).collect();
        let (constants, late) = self.late_constants();
        let working = self.programs.iter().map(Program::working_bytes).max().unwrap_or(0);
        let mut line = |kind, name, bytes| lines.push(MemoryLine { kind, name, bytes: round_up(bytes, BLOCK_ALIGN) });
        line(MemoryKind::States, "states", self.states.bytes);
        line(MemoryKind::Constants, "tables", constants + late * self.late_places as u64);
        line(MemoryKind::Workspace, "workspace", if has_workspace { WORKSPACE_BYTES } else { 0 });
        line(MemoryKind::Working, "activations", working);
        lines
    }

    /// The sum of [`ProgramSet::lines`].
    pub fn bytes(&self, kind: DeviceKind) -> u64 {
        self.lines(kind).iter().map(|line| line.bytes).sum()
    }

    fn span_line(&self, span: ParameterSpan) -> MemoryLine {
        let wide = accumulator(self.precision);
        let (name, dtype) = match span {
            ParameterSpan::Parameters => ("parameters", wide),
            ParameterSpan::Compute => ("compute parameters", self.precision),
            ParameterSpan::Gradients => ("gradients", wide),
            ParameterSpan::FirstMoment => ("optimizer first moment", wide),
            ParameterSpan::SecondMoment => ("optimizer second moment", wide),
            ParameterSpan::Average => ("averaged parameters", wide),
        };
        let bytes = round_up(self.parameters.elements() * dtype.bytes(), BLOCK_ALIGN);
        MemoryLine { kind: MemoryKind::ParameterSpan(span), name, bytes }
    }

    /// The largest holders of the program that needs most.
    pub fn largest(&self) -> Option<(&str, &Program)> {
        let peak = |(_, program): &(&String, &Program)| program.memory.peak_bytes;
        let (name, program) = self.names.iter().zip(&self.programs).max_by_key(peak)?;
        Some((name, program))
    }
}
