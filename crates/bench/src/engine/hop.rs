//! A message from each of two processes to the other: with our engine, with checksums, and with MPI
//! alone.

use std::time::Instant;

use annulus_comm::{Checked, Communicator, Label, P2pOp, World};
use annulus_mpi::{Arriving, Leaving, Session};
use anyhow::{Context, Result, anyhow, ensure};
use candle_core::{DType, Device, Tensor};
use serde_json::json;

use super::Arguments;
use super::parts::{options, timed};
use crate::subject::{Fields, fields};

/// Bytes of the header that MPI alone sends: as many as our engine's has.
const HEADER: usize = 192;
/// Bytes of a buffer for the header.
const FRAME: usize = 4096;
const TAG: i32 = 7;

/// Seconds per message, by samples: with our engine, plain and with checksums.
pub(super) fn ours(arguments: &Arguments, world: &World) -> Result<Fields> {
    ensure!(world.processes() <= 2, "a hop is between two processes");
    let member = |comm| -> Result<[Vec<f64>; 2]> {
        let tensor = filled(arguments.bytes)?;
        let checked = Checked::new(std::sync::Arc::clone(&comm));
        let plain = || messages(comm.as_ref(), &tensor, arguments.messages);
        let sure = || messages(checked.as_ref(), &tensor, arguments.messages);
        let mut seconds = [Vec::new(), Vec::new()];
        for sample in 0..=arguments.samples {
            for (list, work) in seconds.iter_mut().zip([&plain as &dyn Fn() -> _, &sure]) {
                let each = timed(comm.as_ref(), work)? / arguments.messages as f64;
                list.extend((sample > 0).then_some(each));
            }
        }
        Ok(seconds)
    };
    let seconds = world.run(&options(2), member).map_err(|failure| anyhow!("{failure:#}"))?;
    let [plain, checked] = &seconds[0];
    Ok(fields(json!({
        "bench": "hop", "bytes": arguments.bytes, "plain": plain, "checked": checked,
    })))
}

/// A tensor of unequal bytes: a page of zeros may not be in memory.
fn filled(bytes: usize) -> Result<Tensor> {
    let all: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
    Ok(Tensor::from_vec(all, bytes, &Device::Cpu)?)
}

fn messages(comm: &dyn Communicator, tensor: &Tensor, count: usize) -> Result<()> {
    let peer = 1 - comm.rank();
    for hop in 0..count {
        let label = Label { step: 0, layer: 0, pass: "measuring", hop };
        let send = P2pOp::Send { tensor: tensor.clone(), to: peer };
        comm.exchange(label, vec![send, P2pOp::Receive { from: peer, form: None }])?.wait()?;
    }
    Ok(())
}

/// A message between two processes with MPI alone, into the same memory again and again: the payload, and a header before it.
pub(super) fn raw(arguments: &Arguments) -> Result<Fields> {
    let session = Session::begin(annulus_mpi::find(annulus_mpi::launched()?)?)?;
    ensure!(session.size == 2, "a hop is between two processes");
    let tensor = filled(arguments.bytes)?;
    let elements = annulus_mpi::Elements::new(DType::U8, arguments.bytes);
    let mut room = Some(Arriving::Elements(elements.context("bytes travel")?));
    let mut seconds = [Vec::new(), Vec::new()];
    for sample in 0..=arguments.samples {
        for (list, header) in seconds.iter_mut().zip([0, HEADER]) {
            let start = Instant::now();
            for _ in 0..arguments.messages {
                room = Some(one(&session, &tensor, room.take().context("what arrived")?, header)?);
            }
            let each = start.elapsed().as_secs_f64() / arguments.messages as f64;
            list.extend((sample > 0).then_some(each));
        }
    }
    let [payload, header] = &seconds;
    let line =
        json!({ "bench": "raw", "bytes": arguments.bytes, "payload": payload, "header": header });
    let first = session.rank == 0;
    session.end()?;
    // Only the first process is read.
    Ok(if first { fields(line) } else { Fields::new() })
}

/// Exchanges one message between both processes.
fn one(session: &Session, tensor: &Tensor, room: Arriving, header: usize) -> Result<Arriving> {
    let peer = 1 - session.rank;
    let mut leaving = Vec::new();
    if header > 0 {
        leaving.push(session.send(Leaving::Bytes(vec![1; header]), peer, TAG)?);
    }
    leaving.push(session.send(Leaving::tensor(tensor)?, peer, TAG)?);
    if header > 0 {
        // The size of what follows the header is only known from it.
        let mut frame = session.receive(Arriving::Bytes(vec![0; FRAME]), peer, TAG)?;
        while session.arrived(&mut frame)?.is_none() {
            session.progress()?;
        }
    }
    let mut payload = session.receive(room, peer, TAG)?;
    let arrived = loop {
        if let Some(arrived) = session.arrived(&mut payload)? {
            break arrived;
        }
        session.progress()?;
    };
    for mut sending in leaving {
        while !session.has_left(&mut sending) {
            session.progress()?;
        }
    }
    Ok(arrived)
}
