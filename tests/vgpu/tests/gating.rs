//! Disable and enable, the faults that can be injected into them, and what the history says.

mod rig;

use std::time::Duration;

use rig::{Device, Job, MS, Side, at, until};
use tidegate_abi::rm;
use tidegate_vgpu::clock::now_ns;
use tidegate_vgpu::facts::Status;
use tidegate_vgpu::history::Kind;

const FIXED: [&str; 2] = ["--disable-fixed-us", "300"];

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_disabled_kernel_stops_for_another_client_and_resumes_where_it_was() {
    let device = Device::start(&FIXED);
    let job = Job::new(&device, 0, 2);
    let agent = Side::new(&device, 0);
    let end = job.channels[0].spin(20 * MS, 77);
    device.wait_history("the kernel starts", |r| at(r, Kind::KernelStart, 77));
    assert_eq!(
        agent
            .ctl
            .disable(agent.client, agent.subdevice, true, &job.pairs()),
        Status::OK
    );
    let off = now_ns();
    assert!(
        device
            .control()
            .channels()
            .unwrap()
            .iter()
            .all(|c| c.disabled && !c.running)
    );
    // Longer than the kernel takes, so that it would have ended had it run.
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(job.channels[0].done(), 0);
    let on = now_ns();
    assert_eq!(
        agent
            .ctl
            .disable(agent.client, agent.subdevice, false, &job.pairs()),
        Status::OK
    );
    job.channels[0].wait(end);

    let records = device.history();
    let (started, ended) = (
        at(&records, Kind::KernelStart, 77).unwrap(),
        at(&records, Kind::KernelEnd, 77).unwrap(),
    );
    let of = |kind| records.iter().filter(move |r| r.kind == kind);
    let disabled = of(Kind::DisableEnd).next().unwrap();
    let enabled = of(Kind::EnableEnd).next().unwrap();
    assert!(disabled.at_ns <= off && enabled.at_ns >= on);
    let ran = (disabled.at_ns - started) + (ended - enabled.at_ns);
    assert_eq!(ran, 20 * MS, "the remaining work is exact");
    assert_eq!(
        (of(Kind::DisableBegin).count(), of(Kind::DisableEnd).count()),
        (2, 2)
    );
    let begin = of(Kind::DisableBegin).next().unwrap();
    assert!(
        begin.value <= begin.at_ns,
        "the entry comes before the arrival"
    );
    assert_eq!(
        (begin.value, begin.caller),
        (disabled.value, std::process::id())
    );
    assert!(disabled.at_ns - begin.at_ns >= 300_000);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_list_is_refused_whole_by_the_drivers_rules() {
    let device = Device::start(&["--gpus", "2", "--disable-fixed-us", "50"]);
    let job = Job::new(&device, 0, 2);
    let agent = Side::new(&device, 0);
    let elsewhere = Side::new(&device, 1);
    let cmd = rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    let call = |params: &mut rm::DisableChannels| {
        agent
            .ctl
            .control(agent.client, agent.subdevice, cmd, params)
    };
    let many = &mut rm::DisableChannels {
        disable: 1,
        num_channels: 65,
        ..Default::default()
    };
    assert_eq!(call(many), Status::INVALID_PARAM_STRUCT);
    let event = &mut rm::DisableChannels {
        p_runlist_preempt_event: 1,
        ..Default::default()
    };
    assert_eq!(call(event), Status::INSUFFICIENT_PERMISSIONS);
    let none = &mut rm::DisableChannels {
        disable: 1,
        ..Default::default()
    };
    assert_eq!(call(none), Status::INVALID_PARAM_STRUCT);

    let mut pairs = job.pairs();
    pairs.push((job.side.client, 0x999));
    let disable =
        |side: &Side, pairs: &[_]| side.ctl.disable(side.client, side.subdevice, true, pairs);
    assert_eq!(disable(&agent, &pairs), Status::INVALID_CHANNEL);
    assert_eq!(disable(&elsewhere, &job.pairs()), Status::INVALID_CHANNEL);
    device.control().set("unknown_pair", "0x33").unwrap();
    assert_eq!(disable(&agent, &pairs), Status::INVALID_OBJECT_HANDLE);
    assert!(
        device
            .control()
            .channels()
            .unwrap()
            .iter()
            .all(|c| !c.disabled)
    );
    // The object of the call must be the caller's own.
    let foreign = agent
        .ctl
        .disable(job.side.client, job.side.subdevice, true, &job.pairs());
    assert_eq!(foreign, Status::INVALID_CLIENT);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn firmware_that_denies_foreign_pairs_still_takes_them_on_the_owners_file() {
    let device = Device::start(&FIXED);
    let job = Job::new(&device, 0, 1);
    let agent = Side::new(&device, 0);
    for (knob, status) in [
        ("deny_1b", Status::INSUFFICIENT_PERMISSIONS),
        ("deny_23", Status::INVALID_CLIENT),
    ] {
        device.control().set("gsp_foreign", knob).unwrap();
        let by_agent = agent
            .ctl
            .disable(agent.client, agent.subdevice, true, &job.pairs());
        assert_eq!(by_agent, status);
        let taken = job.side.ctl.dup();
        let by_owner = taken.disable(job.side.client, job.side.subdevice, true, &job.pairs());
        assert_eq!(by_owner, Status::OK);
    }
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn eight_gpus_disable_in_turn_without_the_patch_and_together_with_it() {
    let mut spans = Vec::new();
    for patch in ["none", "A", "B"] {
        let device = Device::start(&[
            "--gpus",
            "8",
            "--disable-fixed-us",
            "20000",
            "--patch",
            patch,
        ]);
        let jobs: Vec<Job> = (0..8).map(|gpu| Job::new(&device, gpu, 1)).collect();
        let agents: Vec<Side> = (0..8).map(|gpu| Side::new(&device, gpu)).collect();
        std::thread::scope(|scope| {
            for (agent, job) in agents.iter().zip(&jobs) {
                let pairs = job.pairs();
                scope.spawn(move || {
                    agent
                        .ctl
                        .disable(agent.client, agent.subdevice, true, &pairs)
                });
            }
        });
        let records = device.history();
        let times = |kind| {
            records
                .iter()
                .filter(move |r| r.kind == kind)
                .map(|r| r.at_ns)
        };
        let first = times(Kind::DisableBegin).min().unwrap();
        spans.push(times(Kind::DisableEnd).max().unwrap() - first);
    }
    assert!(spans[0] >= 160 * MS, "{spans:?}");
    assert!(spans[1] < 80 * MS && spans[2] < 80 * MS, "{spans:?}");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn an_injected_failure_leaves_channels_as_the_knob_says() {
    let device = Device::start(&FIXED);
    let job = Job::new(&device, 0, 4);
    let agent = Side::new(&device, 0);
    let control = device.control();
    let disable = |on| {
        agent
            .ctl
            .disable(agent.client, agent.subdevice, on, &job.pairs())
    };
    let disabled = || {
        control
            .channels()
            .unwrap()
            .iter()
            .filter(|c| c.disabled)
            .count()
    };

    control.set("enable_refcount", "flag").unwrap();
    control.set("fail_disable", "1:0x62").unwrap();
    assert_eq!((disable(true), disabled()), (Status::RESET_REQUIRED, 0));
    control.set("partial_disable", "1").unwrap();
    assert_eq!((disable(true), disabled()), (Status::TIMEOUT, 2));
    assert_eq!((disable(true), disabled()), (Status::OK, 4));
    control.set("fail_enable", "1").unwrap();
    assert_eq!((disable(false), disabled()), (Status::TIMEOUT, 4));
    assert_eq!((disable(false), disabled()), (Status::OK, 0));
    control.set("fail_disable_p", "1").unwrap();
    assert_eq!((disable(true), disabled()), (Status::RESET_REQUIRED, 0));
    control.set("fail_disable_p", "0").unwrap();
    control.set("enable_refcount", "count").unwrap();
    assert!(
        [true, true, false]
            .into_iter()
            .all(|on| disable(on).is_ok())
    );
    assert_eq!(disabled(), 4);
    assert!(control.set("no_such_knob", 1).is_err());
    assert!(control.set("patch", "Z").is_err());
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_preempt_that_times_out_kills_the_context() {
    let device = Device::start(&FIXED);
    let job = Job::new(&device, 0, 2);
    let agent = Side::new(&device, 0);
    job.channels[0].spin(1_000 * MS, 1);
    device.control().set("preempt_timeout", 1).unwrap();
    let status = agent
        .ctl
        .disable(agent.client, agent.subdevice, true, &job.pairs());
    assert_eq!(status, Status::TIMEOUT);
    until("the channels fail", || {
        job.channels.iter().all(|c| c.error() == 109)
    });
    assert_eq!(
        device
            .history()
            .iter()
            .filter(|r| r.kind == Kind::Fault)
            .count(),
        2
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_hung_disable_holds_up_the_next_one() {
    let device = Device::start(&FIXED);
    let job = Job::new(&device, 0, 1);
    let (first, second) = (Side::new(&device, 0), Side::new(&device, 0));
    device.control().set("hang", "1:60000").unwrap();
    let begun = now_ns();
    std::thread::scope(|scope| {
        let pairs = job.pairs();
        let theirs = pairs.clone();
        let first = &first;
        scope.spawn(move || {
            first
                .ctl
                .disable(first.client, first.subdevice, true, &theirs)
        });
        device.wait_history("the first arrives", |r| {
            r.iter().find(|r| r.kind == Kind::DisableBegin).map(|_| ())
        });
        second
            .ctl
            .disable(second.client, second.subdevice, true, &pairs);
    });
    assert!(now_ns() - begun >= 60 * MS);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_writer_of_the_api_lock_holds_up_a_disable() {
    let device = Device::start(&FIXED);
    let agent = Side::new(&device, 0);
    assert_eq!(device.control().command("hold_api 50000").unwrap(), "ok");
    let begun = now_ns();
    assert_eq!(
        agent.ctl.disable(agent.client, agent.subdevice, true, &[]),
        Status::INVALID_PARAM_STRUCT
    );
    assert!(now_ns() - begun >= 45 * MS);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_rewind_throws_away_what_has_not_begun() {
    let device = Device::start(&FIXED);
    let job = Job::new(&device, 0, 1);
    let queue = &job.channels[0];
    for tag in 0..10 {
        queue.spin(5 * MS, tag);
    }
    device.wait_history("the first runs", |r| at(r, Kind::KernelStart, 0));
    let mut p = rm::DisableChannels {
        disable: 1,
        num_channels: 1,
        rewind_gp_put: 1,
        ..Default::default()
    };
    (p.h_client_list[0], p.h_channel_list[0]) = job.pairs()[0];
    let cmd = rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    let side = &job.side;
    assert_eq!(
        side.ctl.control(side.client, side.subdevice, cmd, &mut p),
        Status::OK
    );
    let left = device.control().channels().unwrap()[0].queued;
    assert!(left <= 1, "{left} left");
    side.ctl
        .disable(side.client, side.subdevice, false, &job.pairs());
    device.wait_history("the one that had begun ends", |r| at(r, Kind::KernelEnd, 0));
    assert_eq!(at(&device.history(), Kind::KernelStart, 9), None);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_gated_process_that_dies_with_work_queued_stalls_the_node() {
    let device = Device::start(&[
        "--set",
        "stop_channel_wait_us=200000",
        "--disable-fixed-us",
        "50",
    ]);
    let agent = Side::new(&device, 0);
    let victim = Job::new(&device, 0, 2);
    let other = Job::new(&device, 0, 1);
    let stalled_for = |job: Job, gate: bool| {
        for channel in &job.channels {
            channel.spin(10_000 * MS, 3);
        }
        until("the work is queued", || {
            let queued = device.control().channels().unwrap();
            let mine = queued.iter().filter(|c| c.client == job.side.client);
            mine.map(|c| c.queued).sum::<u64>() == job.channels.len() as u64
        });
        if gate {
            let status = agent
                .ctl
                .disable(agent.client, agent.subdevice, true, &job.pairs());
            assert_eq!(status, Status::OK);
        }
        let client = job.side.client;
        drop(job);
        device.wait_history("its client goes", |r| {
            r.iter()
                .find(|r| r.kind == Kind::ClientDown && r.client == client)
                .map(|_| ())
        });
        let begun = now_ns();
        let status = agent.ctl.disable(agent.client, agent.subdevice, true, &[]);
        assert_eq!(status, Status::INVALID_PARAM_STRUCT);
        now_ns() - begun
    };
    let gated = stalled_for(victim, true);
    assert!(gated >= 300 * MS, "two channels wait 200 ms each: {gated}");
    let ungated = stalled_for(other, false);
    assert!(ungated < 150 * MS, "{ungated}");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_client_that_dies_gives_back_everything() {
    let device = Device::start(&[]);
    let job = Job::new(&device, 0, 8);
    job.channels[0].spin(u64::MAX, 1);
    device.wait_history("it runs", |r| at(r, Kind::KernelStart, 1));
    drop(job);
    device.wait_history("all channels go", |r| {
        (r.iter().filter(|r| r.kind == Kind::ChannelDown).count() == 8).then_some(())
    });
    let next = Job::new(&device, 0, 1);
    let end = next.channels[0].spin(1_000, 2);
    next.channels[0].wait(end);
}
