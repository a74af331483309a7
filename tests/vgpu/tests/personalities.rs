//! What each firmware personality does to a channel that runs, and to whom it says no.

mod rig;

use std::time::Duration;

use rig::{Device, Job, MS, Side, at};
use tidegate_abi::rm;
use tidegate_vgpu::clock::now_ns;
use tidegate_vgpu::facts::Status;
use tidegate_vgpu::history::Kind;
use tidegate_vgpu::personality::Personality;

/// A way to stop a channel that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Disable,
    Restart,
    Preempt,
}

const METHODS: [Method; 3] = [Method::Disable, Method::Restart, Method::Preempt];

fn restart(side: &Side, client: u32, channel: u32) -> Status {
    let mut force = rm::RestartRunlist {
        force: 1,
        bypass_wait: 0,
    };
    let cmd = rm::NVA06F_CTRL_CMD_RESTART_RUNLIST;
    side.ctl.control(client, channel, cmd, &mut force)
}

fn disable(side: &Side, pairs: &[(u32, u32)], disable: bool, scheduling_only: bool) -> Status {
    let mut call = rm::DisableChannels {
        disable: u8::from(disable),
        only_disable_scheduling: u8::from(scheduling_only),
        num_channels: pairs.len() as u32,
        ..Default::default()
    };
    for (place, (client, channel)) in pairs.iter().enumerate() {
        (call.h_client_list[place], call.h_channel_list[place]) = (*client, *channel);
    }
    let cmd = rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    side.ctl
        .control(side.client, side.subdevice, cmd, &mut call)
}

/// Tries `method` by the owner on a kernel of 20 ms; its statuses, and whether the kernel stood still.
fn stops(device: &Device, job: &Job, method: Method, tag: u64) -> (Vec<Status>, bool) {
    let side = &job.side;
    let pairs = job.pairs();
    let end = job.channels[0].spin(20 * MS, tag);
    device.wait_history("the kernel starts", |r| at(r, Kind::KernelStart, tag));
    let mut statuses = vec![disable(side, &pairs, true, method == Method::Preempt)];
    if method == Method::Restart {
        statuses.push(restart(side, side.client, job.channels[0].handle));
    }
    if method == Method::Preempt {
        let mut wait = rm::Preempt {
            wait: 1,
            ..Default::default()
        };
        let cmd = rm::NVA06C_CTRL_CMD_PREEMPT;
        statuses.push(side.ctl.control(side.client, job.tsg, cmd, &mut wait));
    }
    // Longer than the kernel takes, so that it would have ended had it run.
    std::thread::sleep(Duration::from_millis(30));
    let ended = at(&device.history(), Kind::KernelEnd, tag);
    assert_eq!(disable(side, &pairs, false, false), Status::OK);
    job.channels[0].wait(end);
    (statuses, ended.is_none())
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn each_personality_is_stopped_by_its_own_methods_and_no_others() {
    for personality in Personality::ALL {
        let device = Device::start(&["--personality", personality.name()]);
        let job = Job::new(&device, 0, 2);
        let found = METHODS
            .map(|method| stops(&device, &job, method, method as u64 + 1))
            .map(|(statuses, stopped)| (statuses.iter().all(|s| s.is_ok()), stopped));
        let [a, b, c] = found;
        let expected = match personality {
            Personality::Evicts | Personality::RefusesForeign => [(true, true); 3],
            Personality::Restart => [(true, false), (true, true), (true, false)],
            Personality::Preempt => [(true, false), (true, false), (true, true)],
            Personality::RefusesRestart => [(true, false), (false, false), (true, true)],
            Personality::KernelEnd | Personality::Deaf => [(true, false); 3],
        };
        assert_eq!([a, b, c], expected, "{}", personality.name());
    }
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn a_kernel_goes_on_to_its_end_and_the_one_behind_it_does_not_begin() {
    let device = Device::start(&["--personality", "kernel-end"]);
    let job = Job::new(&device, 0, 1);
    job.channels[0].spin(20 * MS, 1);
    job.channels[0].spin(20 * MS, 2);
    device.wait_history("the kernel starts", |r| at(r, Kind::KernelStart, 1));
    assert_eq!(disable(&job.side, &job.pairs(), true, false), Status::OK);
    let ended = device.wait_history("it ends", |r| at(r, Kind::KernelEnd, 1));
    let off = device.wait_history("the channel is off", |r| {
        let mut records = r.iter();
        let found = records.find(|r| r.kind == Kind::DisableEnd);
        found.map(|r| r.at_ns)
    });
    assert_eq!(ended, off);
    assert_eq!(at(&device.history(), Kind::KernelStart, 2), None);
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn another_clients_channel_on_the_same_runlist_restarts_it() {
    let device = Device::start(&["--personality", "restart"]);
    let (job, other) = (Job::new(&device, 0, 1), Job::new(&device, 0, 1));
    let agent = Side::new(&device, 0);
    let end = job.channels[0].spin(30 * MS, 1);
    device.wait_history("the kernel starts", |r| at(r, Kind::KernelStart, 1));
    assert_eq!(disable(&agent, &job.pairs(), true, false), Status::OK);
    let handle = other.channels[0].handle;
    // By its owner only: the strict check holds for this call as for every other.
    let foreign = restart(&agent, other.side.client, handle);
    assert_eq!(foreign, Status::INVALID_CLIENT);
    assert_eq!(restart(&other.side, other.side.client, handle), Status::OK);
    let off = now_ns();
    let state = device.control().channels().unwrap();
    assert!(state.iter().all(|channel| !channel.running), "{state:?}");
    assert_eq!(disable(&agent, &job.pairs(), false, false), Status::OK);
    job.channels[0].wait(end);
    let records = device.history();
    let of = |kind| records.iter().find(|r| r.kind == kind).unwrap();
    assert!(of(Kind::DisableEnd).at_ns <= off);
    assert!(of(Kind::Restart).at_ns <= of(Kind::DisableEnd).at_ns);
}
