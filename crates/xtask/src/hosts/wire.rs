//! Simulates a wire between hosts with a delay and losses, in user space, since not every kernel has netem.
//!
//! Every host gets a TUN device. Packets of a host are read here, wait for the delay, and are written to the device of their
//! destination, unless they are drawn to be lost.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::network::{host, ip};

/// The value of `TUNSETIFF`.
const SET: libc::c_ulong = 0x4004_54ca;
/// `IFF_TUN | IFF_NO_PI`: packets without a header of the device.
const FLAGS: i16 = 0x1001;
/// Bytes of a device's name.
const NAME: usize = 16;
/// Bytes of `struct ifreq`.
const REQUEST: usize = 40;
/// The offsets in an IPv4 packet of its version and of the last byte of its destination.
const VERSION: usize = 0;
const TO: usize = 19;
/// More bytes than a packet of the device has.
const PACKET: usize = 2048;

/// TUN devices in namespaces, and threads between them, which end when the namespaces do.
pub(super) struct Wire {
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    carried: AtomicU64,
    lost: AtomicU64,
}

/// A packet, and the time when it arrives.
type Packet = (Instant, Vec<u8>);

impl Wire {
    /// Makes a wire between `hosts` hosts, with a `delay` in milliseconds each way, that loses `lost` of a thousand packets.
    pub(super) fn between(hosts: usize, delay: u64, lost: u32) -> Result<Wire> {
        let counts = Arc::new(Counts::default());
        let (ways, ends): (Vec<Sender<Packet>>, Vec<_>) = (0..hosts).map(|_| channel()).unzip();
        for (index, end) in ends.into_iter().enumerate() {
            let reader = device(index + 1)?;
            let writer = reader.try_clone()?;
            let (ways, counts) = (ways.clone(), counts.clone());
            let delay = Duration::from_millis(delay);
            let seed = index as u64;
            thread::spawn(move || read(reader, &ways, delay, lost, seed, &counts));
            thread::spawn(move || write(writer, &end));
        }
        Ok(Wire { counts })
    }

    /// The number of packets that were carried, and that were lost.
    pub(super) fn counts(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.counts.carried), of(&self.counts.lost))
    }
}

/// Makes a host's device: created here, so that this process has its other end, then moved into the namespace.
fn device(number: usize) -> Result<File> {
    let path = "/dev/net/tun";
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.with_context(|| format!("`{path}`, which makes the wire's devices"))?;
    let (name, space) = (format!("annulus-t{number}"), host(number));
    let mut request = [0u8; REQUEST];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[NAME..NAME + 2].copy_from_slice(&FLAGS.to_ne_bytes());
    // SAFETY: the request is a `struct ifreq` with a zero-terminated name and its flags; the file is open.
    let code = unsafe { libc::ioctl(file.as_raw_fd(), SET as _, request.as_mut_ptr()) };
    if code != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("`{path}` makes no device (CAP_NET_ADMIN is needed)"));
    }
    ip(&["link", "set", &name, "netns", &space])?;
    ip(&["-n", &space, "addr", "add", &format!("10.88.0.{number}/24"), "dev", &name])?;
    ip(&["-n", &space, "link", "set", &name, "mtu", "1500", "txqueuelen", "5000", "up"])?;
    Ok(file)
}

/// Reads the packets of a host until its device is gone.
fn read(
    mut device: File,
    ways: &[Sender<Packet>],
    delay: Duration,
    lost: u32,
    seed: u64,
    counts: &Counts,
) {
    let mut packet = [0u8; PACKET];
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    while let Ok(length) = device.read(&mut packet) {
        let there = Instant::now() + delay;
        if length <= TO || packet[VERSION] >> 4 != 4 {
            continue;
        }
        // A xorshift generator draws which packets are lost.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state % 1000 < u64::from(lost) {
            counts.lost.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let to = usize::from(packet[TO]).wrapping_sub(1);
        let Some(way) = ways.get(to) else { continue };
        counts.carried.fetch_add(1, Ordering::Relaxed);
        if way.send((there, packet[..length].to_vec())).is_err() {
            return;
        }
    }
}

/// Writes packets to a host's device when they arrive; all have the same delay, so their order stays.
fn write(mut device: File, end: &Receiver<Packet>) {
    for (there, packet) in end {
        thread::sleep(there.saturating_duration_since(Instant::now()));
        // A device that is down loses its packets, like an unplugged wire.
        let _ = device.write(&packet);
    }
}
