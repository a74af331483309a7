//! Every way to the driver leads through the library, and whoever takes none of them is left alone.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_tests::watch::{status, wait_all, wait_finished, wait_open};
use tidegate_tests::{
    Node, Offline, Online, Running, TRUSTING, built, compile, monotonic_ns, wait_for,
};

/// The symbols a library defines, as `nm` lists them.
fn exported(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library)
        .output()
        .expect("binutils is installed");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect()
}

/// The rows of the table: symbol, class, first version.
fn rows() -> Vec<(String, String, u32)> {
    let path = built("libtidegate.so");
    // SAFETY: the library has no constructors that act, and stays open; the function takes nothing
    // and returns a C string that lives as long.
    let text = unsafe {
        let library = Library::open(Some(path), RTLD_NOW | RTLD_LOCAL);
        let library = ManuallyDrop::new(library.expect("libtidegate.so can be opened"));
        let hooks = library.get::<extern "C" fn() -> *const libc::c_char>("tidegate_hooks");
        let hooks = hooks.expect("it has the function");
        std::ffi::CStr::from_ptr(hooks())
            .to_string_lossy()
            .into_owned()
    };
    text.lines()
        .map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            let mut next = || words.next().expect("three words a line");
            (next(), next(), next().parse().expect("a version"))
        })
        .collect()
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn the_library_exports_its_hooks_what_its_header_names_and_nothing_else() {
    let mut expected: BTreeSet<String> = rows().into_iter().map(|row| row.0).collect();
    for other in ["dlsym", "dlvsym", "dlopen", "dlmopen", "ioctl"] {
        expected.insert(other.to_owned());
    }
    let header = include_str!("../interposer/include/tidegate.h");
    let named = header.split("TG_FIND(").skip(2);
    expected.extend(named.filter_map(|row| row.split('"').nth(1).map(str::to_owned)));
    let exported = exported(&built("libtidegate.so"));
    let (own, hooks): (BTreeSet<_>, BTreeSet<_>) = exported
        .into_iter()
        .partition(|name| name.starts_with("tidegate_"));
    assert_eq!(hooks, expected);
    assert!(own.len() <= 4, "{own:?}");
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn every_row_is_a_function_of_the_driver_in_that_version() {
    let list = include_str!("vgpu/cuda/symbols.txt");
    let known: BTreeSet<(String, u32)> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        })
        .collect();
    for (symbol, _, since) in rows() {
        assert!(known.contains(&(symbol.clone(), since)), "{symbol} {since}");
    }
}

/// Functions of the driver that take a stream, or work on a thread's default one, and give the device nothing that no
/// other row sees: what the name begins with, and why.
const UNCOUNTED: [(&str, &str); 13] = [
    (
        "cuDeviceRegisterAsync",
        "calls back when the device changes",
    ),
    ("cuDeviceUnregisterAsync", "ends that"),
    ("cuEventRecord", "a mark behind work, which is counted"),
    ("cuGL", "a buffer of OpenGL, which draws it"),
    (
        "cuGraphInstantiateWithParams",
        "what it uploads is there before the graph runs, whose launch is counted",
    ),
    (
        "cuStreamBeginCaptureToCig",
        "work that a graphics library submits",
    ),
    ("cuStreamCopyAttributes", "how later work runs"),
    (
        "cuStreamEndCaptureToCig",
        "work that a graphics library submits",
    ),
    ("cuStreamGet", "asks only"),
    ("cuStreamIsCapturing", "asks only"),
    ("cuStreamSetAttribute", "how later work runs"),
    (
        "cuStreamUpdateCaptureDependencies",
        "the order inside of a graph",
    ),
    ("cuStreamWaitEvent", "waits for work, which is counted"),
];

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
///
/// The driver's own list says which functions these are: work on a stream has a twin for programs whose default stream
/// is each thread's own.
#[test]
fn every_function_of_the_driver_that_may_give_a_stream_work_has_a_row_or_a_reason() {
    let list = include_str!("vgpu/cuda/symbols.txt");
    let rows: BTreeSet<String> = rows().into_iter().map(|row| row.0).collect();
    let names: BTreeSet<&str> = list
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    let plain = |name: &'static str| {
        let twin = ["_ptsz", "_ptds"];
        let ending = twin.iter().find_map(|twin| name.strip_suffix(twin));
        ending.unwrap_or(name)
    };
    let with_twin: BTreeSet<&str> = names
        .iter()
        .map(|name| plain(name))
        .filter(|name| {
            ["_ptsz", "_ptds"]
                .iter()
                .any(|end| names.contains(&*format!("{name}{end}")))
        })
        .collect();
    // Older than the twins, or for several streams.
    let gives_work = |name| {
        with_twin.contains(plain(name)) || name.contains("Async") || name.starts_with("cuLaunch")
    };
    let (mut seen, mut used) = (0, BTreeSet::new());
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&'static str> = line.split(' ').collect();
        let since: u32 = words[2].parse().expect("a version");
        // Names from before CUDA 3.2 that have a second version carry 32-bit addresses.
        let replaced = since < 3020 && names.contains(&*format!("{}_v2", words[1]));
        if replaced || !gives_work(words[1]) {
            continue;
        }
        seen += 1;
        let reason = UNCOUNTED
            .iter()
            .find(|(begin, _)| words[1].starts_with(begin));
        used.extend(reason.map(|reason| reason.0));
        assert_eq!(
            rows.contains(words[1]),
            reason.is_none(),
            "{line}: {reason:?}"
        );
    }
    assert!(seen > 200, "only {seen} in the list");
    assert_eq!(used.len(), UNCOUNTED.len(), "only {used:?} are in the list");
}

fn counts_all(output: &str) {
    let line = output
        .lines()
        .find(|line| line.starts_with("counted"))
        .unwrap_or_else(|| panic!("no count in {output:?}"));
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[1], words[3], "{line}");
    assert_ne!(words[1], "0", "{line}");
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn launches_are_counted_whichever_way_the_driver_was_found() {
    let node = Node::device_only(&[]);
    let resolve = compile("resolve", &[]);
    let linked = ["local", "global", "next"];
    let mut ways: Vec<Vec<String>> = linked.map(|way| vec![way.into()]).to_vec();
    for version in ["11040", "12000", "12080", "13000", "13020"] {
        for flags in ["0", "1", "2"] {
            for how in ["gpa", "gpa1"] {
                ways.push(vec![how.into(), version.into(), flags.into()]);
            }
        }
    }
    for way in ways {
        let name = way.join(" ");
        let mut command = node.preloaded(&resolve, "");
        counts_all(&Running::start(&name, command.args(&way)).succeed());
        let mut command = node.plain(&resolve);
        let without = Running::start(&name, command.args(&way)).succeed();
        let newest = !way[0].starts_with("gpa") || way[1] == "13020";
        let launches = if newest { 15 } else { 13 };
        assert_eq!(
            without.trim(),
            format!("counted 0 of {launches}"),
            "{name} without the library"
        );
    }
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn a_linked_program_with_many_threads_is_counted() {
    let node = Node::device_only(&[]);
    let linked = compile("linked", &["-lcuda"]);
    counts_all(&Running::start("linked", &mut node.preloaded(&linked, "")).succeed());
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn no_launch_is_missing_while_the_counts_of_threads_that_ended_are_moved() {
    let node = Node::device_only(&[]);
    let linked = compile("linked", &["-lcuda"]);
    let mut command = node.preloaded(&linked, "");
    counts_all(&Running::start("linked", command.args(["40", "20"])).succeed());
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn a_second_preloaded_library_on_either_side_works_and_both_see_every_launch() {
    let node = Node::device_only(&[]);
    let linked = compile("linked", &["-lcuda"]);
    let second = compile("second", &["-shared", "-fPIC"]);
    let (ours, shim) = (built("libtidegate.so"), built("libvgpu_rm.so"));
    for order in [[&second, &ours, &shim], [&ours, &second, &shim]] {
        let preload = order.map(|path| path.to_string_lossy().into_owned());
        let mut command = node.preloaded(&linked, "");
        let output =
            Running::start("linked", command.env("LD_PRELOAD", preload.join(":"))).succeed();
        counts_all(&output);
        assert!(output.contains("second saw 1600"), "{output}");
    }
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn behind_ours_another_owner_of_dlsym_sees_every_launch_too() {
    let node = Node::device_only(&[]);
    let resolve = compile("resolve", &[]);
    let linked = compile("linked", &["-lcuda"]);
    // The names in its own code lead to our functions, or to its own.
    let owner = compile("owner", &["-shared", "-fPIC"]);
    let symbolic = compile("owner", &["-shared", "-fPIC", "-Wl,-Bsymbolic"]);
    let (ours, shim) = (built("libtidegate.so"), built("libvgpu_rm.so"));
    let run = |owner: &Path, program: &Path, args: &[&str], by_dlsym: bool| {
        let mut command = node.preloaded(program, "");
        preloading(&mut command, &[&ours, owner, &shim]);
        if by_dlsym {
            command.env("OWNER_DLSYM", "1");
        }
        let output = Running::start("owner", command.args(args)).succeed();
        counts_all(&output);
        output
    };
    let ways: [&[&str]; 3] = [&["local"], &["gpa", "12080", "0"], &["gpa1", "11040", "0"]];
    for (owner, by_dlsym) in [(&owner, false), (&owner, true), (&symbolic, false)] {
        for way in ways {
            let output = run(owner, &resolve, way, by_dlsym);
            // Eleven launches, and three that are captured.
            assert!(output.contains("owner saw 14"), "{way:?}: {output}");
        }
        let output = run(owner, &linked, &[], by_dlsym);
        assert!(output.contains("owner saw 1600"), "{output}");
    }
}

/// An owner of `dlsym`, preloaded before the library.
fn owner_before(flags: &[&str]) -> [PathBuf; 3] {
    // It leaves the C library its caller's address, without which the virtual GPU's shim finds itself.
    let tail = ["-shared", "-fPIC", "-O2", "-foptimize-sibling-calls"];
    let owner = compile("owner", &[&tail, flags].concat());
    [owner, built("libtidegate.so"), built("libvgpu_rm.so")]
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn before_ours_another_owner_of_dlsym_and_the_library_see_every_launch() {
    let node = Node::device_only(&[]);
    let before = owner_before(&[]);
    let libraries = before.each_ref().map(PathBuf::as_path);
    let run = |program: &Path, args: &[&str]| {
        let mut command = node.preloaded(program, "");
        preloading(&mut command, &libraries);
        let output = Running::start("owner", command.args(args)).succeed();
        counts_all(&output);
        output
    };
    let resolve = compile("resolve", &[]);
    // Eleven launches, and three that are captured.
    let output = run(&resolve, &["local"]);
    assert!(output.contains("owner saw 14"), "{output}");
    // The owner answers for no cuGetProcAddress, and sees nothing of what it answers.
    run(&resolve, &["gpa", "12080", "0"]);
    run(&resolve, &["gpa1", "11040", "0"]);
    let output = run(&compile("linked", &["-lcuda"]), &[]);
    assert!(output.contains("owner saw 1600"), "{output}");
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn before_ours_another_owner_of_dlsym_leaves_an_offline_program_gated() {
    let node = Node::new(&[], TRUSTING);
    let before = owner_before(&[]);
    is_gated(&node, &before.each_ref().map(PathBuf::as_path));
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn an_offline_program_that_no_hook_sees_is_gated() {
    let node = Node::new(&[], TRUSTING);
    let past = owner_before(&["-DBY_HANDLE"]);
    is_gated(&node, &past.each_ref().map(PathBuf::as_path));
}

/// P-LIBRARY-2: an online program whose launches are not seen is busy for as long as it has a channel.
#[test]
fn an_online_program_that_no_hook_sees_keeps_offline_off_the_gpu_until_it_ends() {
    let node = Node::new(&[], TRUSTING);
    let mut offline = Offline::start(&node, 300_000, &[0]);
    offline.running();
    let pid = [offline.process.pid()];
    wait_finished(&node, &pid, 3, monotonic_ns());
    let past = owner_before(&["-DBY_HANDLE"]);
    let mut command = node.preloaded(compile("drivers", &[]), "online");
    preloading(&mut command, &past.each_ref().map(PathBuf::as_path));
    command.arg("loop").arg(built("libcuda.so.1")).arg("300000");
    let mut unseen = Offline::from_command(&mut command);
    unseen.running();
    wait_all(&node, &pid, true);
    let row = wait_for("status to say why it is busy", || {
        let status = status(&node);
        let processes = status["processes"].as_array().cloned()?;
        let of_it = |row: &serde_json::Value| row["pid"] == unseen.process.pid();
        let row = processes.into_iter().find(of_it)?;
        (row["devices"][0]["suspect"] == "unseen_launches").then_some(row)
    });
    assert_eq!(row["devices"][0]["busy"], true, "{row}");
    unseen.process.child.kill().expect("it runs");
    unseen.process.child.wait().expect("it was killed");
    wait_all(&node, &pid, false);
    wait_finished(&node, &pid, 3, monotonic_ns());
}

/// P-LIBRARY-2: every way to the driver is seen, or the process is named.
#[test]
fn a_driver_in_a_namespace_of_its_own_is_named_in_the_same_words_by_status_and_doctor() {
    let node = Node::new(&[], TRUSTING);
    let shim = "-l:libvgpu_rm.so";
    let flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", shim, "-lcuda"];
    let plugin = compile("elsewhere", &flags);
    let mut command = node.preloaded(compile("drivers", &[]), "offline");
    command.arg("elsewhere").arg(plugin).arg("300000");
    let mut hidden = Offline::from_command(&mut command);
    hidden.running();
    let pid = hidden.process.pid();
    wait_for("status to name it", || {
        let status = status(&node);
        let rows = status["unattached"].as_array().cloned().unwrap_or_default();
        let named = |row: &serde_json::Value| row["pid"] == pid && row["other_namespace"] == true;
        rows.iter().any(named).then_some(())
    });
    let words = "with the library, but in a link-map namespace of its own (dlmopen)";
    for command in ["status", "doctor"] {
        let output = node.tidegate(&[command]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Doctor breaks its lines.
        let text: Vec<_> = text.split_whitespace().collect();
        let text = text.join(" ");
        assert!(text.contains(words), "{command}: {text}");
    }
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn two_copies_of_the_driver_each_get_their_own_functions() {
    let node = Node::device_only(&[]);
    let drivers = compile("drivers", &[]);
    let first = built("libcuda.so.1");
    let (second, third) = (node.dir().join("libcuda.so.1"), node.dir().join("other.so"));
    for copy in [&second, &third] {
        std::fs::copy(&first, copy).expect("the node's directory is writable");
    }
    for (one, two) in [(&first, &second), (&third, &first), (&first, &third)] {
        let mut command = node.preloaded(&drivers, "");
        let output = Running::start("drivers", command.arg("two").args([one, two])).succeed();
        // The launches of the first driver: those of the second are no business of its functions.
        assert_eq!(output.trim(), "counted 10 of 20", "{one:?} {two:?}");
    }
}

/// P-LIBRARY-3: a program notices nothing at its end.
#[test]
fn a_neighbour_that_gives_its_state_up_at_exit_is_called_no_more() {
    let node = Node::device_only(&[]);
    let linked = compile("linked", &["-lcuda"]);
    let neighbour = compile("neighbour", &["-shared", "-fPIC"]);
    let (ours, shim) = (built("libtidegate.so"), built("libvgpu_rm.so"));
    let with: &[&Path] = &[&ours, &neighbour, &shim];
    for libraries in [with, &with[1..]] {
        for _ in 0..3 {
            // Nobody listens, so that the reporter tries again and again.
            let mut command = node.preloaded(&linked, "online");
            preloading(&mut command, libraries);
            let output = Running::start("linked", &mut command).finish();
            assert_eq!(output.status.code(), Some(0), "{libraries:?}");
        }
    }
}

/// What is preloaded, in this order.
fn preloading(command: &mut Command, libraries: &[&Path]) {
    let paths: Vec<_> = libraries
        .iter()
        .map(|path| path.to_string_lossy())
        .collect();
    command.env("LD_PRELOAD", paths.join(":"));
}

/// An offline program of a node whose driver is found by `dlsym`, under what is preloaded.
fn is_gated(node: &Node, libraries: &[&Path]) {
    let drivers = compile("drivers", &[]);
    let mut command = node.preloaded(drivers, "offline");
    preloading(&mut command, libraries);
    let driver = built("libcuda.so.1");
    command.arg("loop").arg(driver).arg("300000");
    let mut offline = Offline::from_command(&mut command);
    offline.running();
    let pid = [offline.process.pid()];
    let online = node.preloaded(compile("online", &["-lcuda"]), "online");
    let mut online = Online::from_command(&mut { online });
    wait_open(node, 0, online.process.pid());
    for _ in 0..2 {
        wait_finished(node, &pid, 3, monotonic_ns());
        online.say("hold");
        wait_all(node, &pid, true);
        online.say("release");
        wait_all(node, &pid, false);
    }
    let status = status(node);
    let processes = status["processes"].as_array().expect("a list");
    let of_it = |process: &&serde_json::Value| process["pid"] == pid[0];
    assert_eq!(processes.iter().filter(of_it).count(), 1, "{status}");
    let events = node.tidegate(&["events", "--output", "json"]);
    let events = String::from_utf8(events.stdout).expect("text");
    let attached = |line: &&str| {
        line.contains("\"attached\"") && line.contains(&format!("\"pid\":{}", pid[0]))
    };
    assert_eq!(events.lines().filter(attached).count(), 1, "{events}");
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn a_second_copy_of_the_library_stands_aside() {
    let node = Node::new(&[], TRUSTING);
    let ours = built("libtidegate.so");
    let copy = node.dir().join("copy.so");
    std::fs::copy(&ours, &copy).expect("the node's directory is writable");
    is_gated(&node, &[&ours, &copy, &built("libvgpu_rm.so")]);
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn a_library_in_a_namespace_of_its_own_is_opened_and_the_log_says_that_it_is_not_seen() {
    let node = Node::device_only(&[]);
    let drivers = compile("drivers", &[]);
    for (log, said) in [("1", true), ("0", false)] {
        let mut command = node.preloaded(&drivers, "");
        command.args(["namespace", "libm.so.6"]);
        let output = Running::start("drivers", command.env("TIDEGATE_LOG", log)).finish();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.stdout, b"opened\n", "{text}");
        assert_eq!(text.contains("(dlmopen)"), said, "{text}");
    }
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn deepbind_hides_the_hooks_unless_the_operator_says_otherwise() {
    let node = Node::device_only(&[]);
    let resolve = compile("resolve", &[]);
    let plugin = compile("plugin", &["-shared", "-fPIC", "-lcuda"]);
    let run = |drop: &str| {
        let mut command = node.preloaded(&resolve, "");
        command
            .arg("deepbind")
            .arg(&plugin)
            .env("TIDEGATE_NODEEPBIND", drop);
        Running::start("deepbind", &mut command).succeed()
    };
    counts_all(&run("1"));
    assert_eq!(
        run("0").trim(),
        "counted 0 of 5",
        "the default leaves dlopen alone"
    );
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn the_kill_switch_leaves_everything_to_the_driver() {
    let node = Node::device_only(&[]);
    let linked = compile("linked", &["-lcuda"]);
    let mut command = node.preloaded(&linked, "");
    let output = Running::start("linked", command.env("TIDEGATE_DISABLE", "1")).succeed();
    assert_eq!(output.trim(), "counted 0 of 1600");
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn programs_without_cuda_gain_no_thread_and_no_socket() {
    let preload = built("libtidegate.so");
    let run = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("LD_PRELOAD", &preload)
            .env("TIDEGATE_ROLE", "offline")
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let output = Running::start("program", &mut command).finish();
        assert!(output.status.success(), "{program:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{program:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(run(Path::new("/bin/sh"), &["-c", "echo a | cat"]), "a\n");
    run(Path::new("/bin/ls"), &["/"]);
    let threads = compile("busy_threads", &[]);
    assert_eq!(run(&threads, &[]), "threads 1 sockets 0\n");
    let fixed = compile("busy_threads", &["-static"]);
    assert_eq!(run(&fixed, &[]), "threads 1 sockets 0\n");
}
