//! The options of a run.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use annulus_comm::World;
use annulus_comm::flight;
use annulus_data::Tokenizer;
use annulus_plan::Plan;

use crate::error::failure;
use crate::folder::manifest::Fork;
use crate::run::rerun::Rerun;
use crate::setup::device;
use crate::setup::processors::Processors;
use crate::setup::shared::{cores_here, ranks_here};
use crate::step::hashes::dump::Dump;
use crate::{Result, Setup};

/// The options of a run: everything that it needs besides its plan and its console.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The experiment's text, kept verbatim in the run folder.
    pub yaml: String,
    /// The command line that started the run, for the record.
    pub command: Vec<String>,
    /// The checkpoint that it begins from if it has none of its own.
    pub fork: Option<Fork>,
    /// The run, or a step of one, that this run computes again.
    pub rerun: Option<Rerun>,
    /// The step of which all tensors are written down.
    pub dump: Option<Dump>,
    /// Set from outside to stop the run: the last finished step is then saved.
    pub stop: Arc<AtomicBool>,
    /// The processes of the run, and where they are.
    pub world: World,
    /// Cores of this machine that may be used.
    pub cores: usize,
    /// The tokenizer, if it has been opened already.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Whether texts and token caches are read and hashed even where nothing suggests that they have changed.
    pub verify_cache: bool,
    /// For tests: what runs operators, instead of the devices that the plan names.
    pub processors: Processors,
}

impl RunOptions {
    /// Defaults for a run that is never asked to stop.
    pub fn new(yaml: impl Into<String>, cores: usize) -> RunOptions {
        RunOptions {
            yaml: yaml.into(),
            command: Vec::new(),
            fork: None,
            rerun: None,
            dump: None,
            stop: Arc::default(),
            world: World::alone(),
            cores,
            tokenizer: None,
            verify_cache: false,
            processors: Processors::default(),
        }
    }

    /// The setup of `plan` on this process's share of the machine.
    pub(crate) fn setup(&mut self, plan: &Plan) -> Result<Setup> {
        let setup = if self.processors.is_empty() {
            Setup::on_its_device_over(&self.world, plan, self.cores)?
        } else {
            let cores = cores_here(&self.world, self.cores);
            Setup::new(plan, cores).on(std::mem::take(&mut self.processors))
        };
        let strategies = setup.groups.iter().map(|group| group.strategy);
        device::check_all(strategies, setup.block, &setup.config, &setup.processors)?;
        device::check_tokens(setup.shards(), &setup.processors)?;
        setup.computes_on()?;
        Ok(setup.over(&self.world))
    }

    /// Starts the flight record of this process's ranks in the run's folder.
    pub(crate) fn record(&self, setup: &Setup, output: &Path) -> Result<()> {
        let (folder, here) = (output.join(flight::FOLDER), self.here(setup)?);
        let failed = |error| failure("write a flight record to", &folder, &error);
        self.world.record(&folder, here).map_err(failed)
    }

    /// Which ranks are threads of this process.
    pub(crate) fn here(&self, setup: &Setup) -> Result<Range<usize>> {
        ranks_here(&self.world, setup.world())
    }
}
