//! What the fuzzer kept, and every input that once failed, read again without the fuzzer.

use std::path::Path;
use tidegate_fuzz::TARGETS;

fn read_all(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.expect("a target of that name");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .expect("each target has a corpus")
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", directory.display());
    for file in files {
        let input = std::fs::read(&file).expect("readable");
        println!("{}", file.display());
        (target.run)(&input);
    }
    target.remove_files();
}

macro_rules! read_again {
    ($($test:ident: $name:literal;)*) => {
        $(#[test]
        fn $test() {
            read_all($name);
        })*

        /// P-SECURITY-5: whatever was found once is met by one clear refusal.
        #[test]
        fn every_target_is_read_again() {
            assert_eq!(TARGETS.map(|target| target.name), [$($name),*]);
        }
    };
}

read_again! {
    a_hostile_page_moves_nobody_else: "page";
    hostile_messages_move_nobody_else: "hook";
    what_stays_of_a_tenants_sessions_is_at_most_what_it_may_have: "sessions";
    calls_are_decoded_within_their_bytes: "ioctl";
    a_tenants_cgroups_change_no_role: "identity";
    a_configuration_is_dumped_as_it_was_taken_or_refused_with_its_place: "config";
    a_trace_is_sorted_or_refused_with_its_line: "trace";
    a_history_of_anything_is_summed_up: "history";
    a_reader_is_answered_and_moves_nobody: "status";
    whatever_comes_to_the_socket_of_libraries_a_neighbour_is_greeted: "greeting";
    whatever_comes_to_the_socket_of_readers_a_neighbour_is_answered: "frames";
    an_agent_starts_over_whatever_the_one_before_left: "journal";
    a_broken_log_of_lost_blocks_is_read_to_its_end: "joblog";
    answers_of_servers_and_schedulers_are_read_or_refused: "answers";
}
