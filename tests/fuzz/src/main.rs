//! libFuzzer around the target that `TIDEGATE_FUZZ_TARGET` names; its arguments are libFuzzer's. Without
//! the engine (a build that is not `scripts/fuzz`'s) it reads the files it is given, once.
#![cfg_attr(fuzzing, no_main)]

use tidegate_fuzz::{TARGETS, Target};

fn target() -> Target {
    let name = std::env::var("TIDEGATE_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.into_iter().find(|target| target.name == name);
    found.unwrap_or_else(|| {
        let names = TARGETS.map(|target| target.name).join(", ");
        panic!("TIDEGATE_FUZZ_TARGET is `{name}`, not one of {names}")
    })
}

#[cfg(not(fuzzing))]
fn main() {
    let target = target();
    for path in std::env::args_os().skip(1) {
        (target.run)(&std::fs::read(path).expect("a file of one input"));
    }
}

#[cfg(fuzzing)]
mod engine {
    use std::sync::LazyLock;
    use tidegate_fuzz::Target;

    // libFuzzer's `main` calls this crate, which calls `rust_fuzzer_test_input`.
    extern crate libfuzzer_sys as _;

    static TARGET: LazyLock<Target> = LazyLock::new(|| {
        let report = std::panic::take_hook();
        // Where it happened, not where it was caught: a panic in a thread or behind a `catch_unwind`
        // counts too.
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            std::process::abort();
        }));
        super::target()
    });

    // SAFETY: the symbol is libfuzzer-sys' own name for what it calls, declared there with this type.
    #[unsafe(no_mangle)]
    fn rust_fuzzer_test_input(input: &[u8]) -> i32 {
        (TARGET.run)(input);
        0
    }
}
