//! The shared memory of each GPU for people: by place, by owner, by cache, by job.

use super::figures::or_dash;
use crate::json;
use std::fmt::Write;
use tidegate_proto::v1;
use tidegate_text::screen::{Grid, long, number};

const fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// Who holds the shared memory, where some is shared.
pub(super) fn status(report: &v1::GetStatusResponse, width: Option<u16>, text: &mut String) {
    for gpu in &report.gpus {
        let Some(memory) = &gpu.memory else { continue };
        let _ = writeln!(
            text,
            "\nmemory of GPU {}, MiB: {} free, {} promised, {} headroom, {} online, {} offline, \
             {} quarantined of {}",
            gpu.index,
            mib(memory.free_bytes),
            mib(memory.in_flight_bytes),
            mib(memory.headroom_bytes),
            mib(memory.online_bytes),
            mib(memory.offline_bytes),
            mib(memory.quarantined_bytes),
            mib(memory.pool_bytes),
        );
        // An agent of an earlier version names none.
        if !memory.owners.is_empty() {
            let shown = owners(report, memory).show(width, text);
            let meanings = [
                ("HANDLES", "HANDLES back KV caches"),
                ("MOVING", "MOVING: being taken or promised"),
                ("TAKEN", "TAKEN: by others"),
            ];
            let shown = meanings.iter().filter(|(head, _)| shown.has(head));
            let meanings: Vec<_> = shown.map(|(_, meaning)| *meaning).collect();
            if !meanings.is_empty() {
                let _ = writeln!(text, "({})", meanings.join("; "));
            }
        }
        for cache in &memory.caches {
            let owner = process(report, cache.session).map_or_else(
                || format!("session {}", cache.session),
                |process| format!("{} (pid {})", process.name, process.pid),
            );
            let _ = write!(
                text,
                "  {owner}: {} of {} MiB in use, headroom {} MiB, {:.1} pressure events per minute",
                mib(cache.used_bytes),
                mib(cache.mapped_bytes),
                mib(cache.headroom_bytes),
                cache.pressure_per_minute,
            );
            let target = cache.pressure_target_per_minute;
            if target > 0.0 {
                let _ = write!(text, " (target {target:.1})");
            }
            text.push('\n');
        }
    }
    for job in &report.jobs {
        if let Some(memory) = &job.memory {
            let _ = writeln!(
                text,
                "  {}: {} of {} stripes taken{}, {} reclaims, {} blocks invalidated, {} tokens to \
                 compute again{}",
                job.name,
                memory.stripes_taken,
                memory.stripes,
                if memory.reclaimable {
                    ""
                } else {
                    " (nothing more for now)"
                },
                memory.reclaims,
                memory.blocks_invalidated,
                memory.tokens_lost,
                beside_others(memory),
            );
        }
    }
}

/// What a job has and deserves where others have caches too.
fn beside_others(memory: &v1::JobMemory) -> String {
    match (memory.has_bytes, memory.deserves_bytes) {
        (Some(has), Some(deserves)) => {
            format!("; has {} MiB, deserves {}", mib(has), mib(deserves))
        }
        _ => String::new(),
    }
}

fn process(report: &v1::GetStatusResponse, session: u64) -> Option<&v1::ProcessStatus> {
    report.processes.iter().find(|row| row.session == session)
}

fn owners(report: &v1::GetStatusResponse, memory: &v1::GpuMemory) -> Grid {
    let mut rows = Grid::new(&[
        number("PID"),
        long("NAME", 12),
        long("ROLE", 8),
        long("JOB", 12),
        number("MIB"),
        long("OF WHICH", 14),
        number("HANDLES").spare(1),
        number("MOVING").spare(2),
        number("TAKEN").spare(3),
    ]);
    for owner in &memory.owners {
        // What nobody gives back is kept from offline jobs, whoever holds it.
        let is_left_alone = process(report, owner.session)
            .is_some_and(|process| process.role() == v1::Role::Ignore);
        let as_online = if is_left_alone {
            "counted as online's"
        } else {
            "online"
        };
        let places = [
            (owner.in_flight_bytes, "promised"),
            (owner.headroom_bytes, "headroom"),
            (owner.online_bytes, as_online),
            (owner.offline_bytes, "offline"),
            (owner.quarantined_bytes, "quarantined"),
            (owner.excess_bytes, "beyond the pool"),
        ];
        let held = places.iter().map(|place| place.0).sum();
        let places = places.iter().filter(|place| mib(place.0) != 0);
        let places: Vec<_> = places
            .map(|(bytes, place)| format!("{} {place}", mib(*bytes)))
            .collect();
        let (pid, name, role, job) = process(report, owner.session).map_or_else(
            || ("-".to_owned(), "-", "-".to_owned(), "-"),
            |process| {
                let pid = process.pid.to_string();
                (pid, &*process.name, json::role(process), &*process.job)
            },
        );
        let moving = owner
            .handles_quarantined
            .saturating_add(owner.handles_in_flight);
        rows.add([
            pid,
            name.to_owned(),
            role,
            or_dash(job).to_owned(),
            if held > 0 && mib(held) == 0 {
                "< 1".to_owned()
            } else {
                mib(held).to_string()
            },
            or_dash(&places.join(", ")).to_owned(),
            owner.handles.to_string(),
            moving.to_string(),
            owner.handles_taken.to_string(),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_a_row_and_an_agent_that_names_none_is_shown_by_place() {
        let mut report = v1::GetStatusResponse {
            gpus: vec![v1::GpuStatus {
                memory: Some(v1::GpuMemory {
                    pool_bytes: 8 << 20,
                    free_bytes: 4 << 20,
                    offline_bytes: 3 << 20,
                    quarantined_bytes: 1 << 20,
                    caches: vec![v1::ElasticCache {
                        session: 9,
                        ..v1::ElasticCache::default()
                    }],
                    ..v1::GpuMemory::default()
                }),
                ..v1::GpuStatus::default()
            }],
            processes: vec![v1::ProcessStatus {
                session: 7,
                pid: 41,
                name: "python".to_owned(),
                role: v1::Role::Offline.into(),
                job: "batch".to_owned(),
                ..v1::ProcessStatus::default()
            }],
            ..v1::GetStatusResponse::default()
        };
        let shown = |report: &v1::GetStatusResponse| {
            let mut text = String::new();
            status(report, Some(100), &mut text);
            text
        };
        let places = "\nmemory of GPU 0, MiB: 4 free, 0 promised, 0 headroom, 0 online, 3 offline, \
                      1 quarantined of 8\n  session 9: 0 of 0 MiB in use, headroom 0 MiB, 0.0 pressure events \
                      per minute\n";
        assert_eq!(shown(&report), places);
        let owner = |session| v1::MemoryOwner {
            session,
            offline_bytes: 3 << 20,
            quarantined_bytes: 1 << 20,
            handles: 3,
            handles_quarantined: 1,
            handles_in_flight: 1,
            handles_taken: 4,
            ..v1::MemoryOwner::default()
        };
        let memory = report.gpus[0].memory.as_mut().expect("it is shared");
        memory.owners = vec![owner(7), owner(8)];
        let text = shown(&report);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let numbers = ["4", "3", "offline,", "1", "quarantined", "3", "2", "4"];
        let row = |who: [&'static str; 4]| [&who[..], &numbers].concat();
        assert!(
            rows.contains(&row(["41", "python", "offline", "batch"])),
            "{text}"
        );
        assert!(rows.contains(&row(["-", "-", "-", "-"])), "{text}");
    }

    #[test]
    fn a_process_that_is_left_alone_holds_no_online_memory_and_crumbs_are_no_zeroes() {
        let owner = |session, online_bytes| v1::MemoryOwner {
            session,
            online_bytes,
            ..v1::MemoryOwner::default()
        };
        let process = |session, name: &str, role: v1::Role| v1::ProcessStatus {
            session,
            pid: 41,
            name: name.to_owned(),
            role: role.into(),
            ..v1::ProcessStatus::default()
        };
        let report = v1::GetStatusResponse {
            gpus: vec![v1::GpuStatus {
                memory: Some(v1::GpuMemory {
                    owners: vec![owner(7, 8), owner(8, 3 << 20), owner(9, 5 << 20)],
                    ..v1::GpuMemory::default()
                }),
                ..v1::GpuStatus::default()
            }],
            processes: vec![
                process(7, "small", v1::Role::Ignore),
                process(8, "alone", v1::Role::Ignore),
                process(9, "vllm", v1::Role::Online),
            ],
            ..v1::GetStatusResponse::default()
        };
        let mut text = String::new();
        status(&report, Some(100), &mut text);
        let of = |name: &str| {
            let row = text.lines().find(|line| line.contains(name));
            let row = row.unwrap_or_else(|| panic!("{name} is not in {text}"));
            let words: Vec<_> = row.split_whitespace().skip(4).collect();
            words.join(" ")
        };
        assert_eq!(of("small"), "< 1 - 0 0 0");
        assert_eq!(of("alone"), "3 3 counted as online's 0 0 0");
        assert_eq!(of("vllm"), "5 5 online 0 0 0");
    }
}
