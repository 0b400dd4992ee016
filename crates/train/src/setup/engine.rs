//! The engine that carries tensors between processes: NCCL or MPI.

use annulus_experiment::Engine;

use crate::setup::shared::{once, unreached};
use crate::{Result, Setup, TrainError};

impl Setup {
    /// Joins the processes by the engine that `mesh.engine` names, which carries tensors from now on; returns what a user should know of
    /// it. All processes must call it.
    ///
    /// # Errors
    /// NCCL is named and a process cannot use it: process 0 returns why, the others an error that another has ended.
    pub(crate) fn join(&self) -> Result<Option<String>> {
        let world = &self.processes;
        if self.engine == Engine::Mpi || world.processes() == 1 {
            world.sends_by_mpi();
            return Ok(None);
        }
        let device = self.device();
        match world.sends_by_nccl(&device, self.world()).map_err(unreached)? {
            Some(why) if self.engine == Engine::Nccl => {
                let message = format!("`mesh.engine: nccl`: {why}");
                let hint = Some("set `mesh.engine: mpi`, or remove it".to_owned());
                Err(once(world, TrainError::Configuration { message, hint }))
            }
            // On a CPU nobody expects NCCL.
            Some(why) => Ok(device.is_cuda().then(|| format!("tensors go by MPI: {why}"))),
            None => {
                let said = |(version, file): (String, std::path::PathBuf)| {
                    format!("tensors go by NCCL {version} ({})", file.display())
                };
                Ok(world.nccl().map(said))
            }
        }
    }
}
