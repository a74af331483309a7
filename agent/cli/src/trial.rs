//! `tidegate try`: a program of one's own on a virtual GPU, without a driver, a compiler or an agent of the node's.

use std::ffi::OsString;
use std::time::Duration;

/// See each field.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run the program online, beside an offline job (default: offline, beside an online server).
    #[arg(long)]
    online: bool,
    /// Run nothing beside the program.
    #[arg(long)]
    alone: bool,
    /// What each kernel of the program takes: the virtual GPU does not compute.
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = kernel)]
    kernel: Duration,
    /// End the program with SIGTERM after this time (default: it ends by itself).
    #[arg(long, value_name = "TIME", value_parser = limit)]
    limit: Option<Duration>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Whole microseconds up to a minute.
fn kernel(text: &str) -> Result<Duration, String> {
    let whole = |time: &Duration| time.subsec_nanos().is_multiple_of(1_000);
    let time = tidegate_agent::config::duration(text).filter(whole);
    let within = time.filter(|time| (1..=60_000_000).contains(&time.as_micros()));
    within.ok_or_else(|| "give a time of 1us to 60s, such as 500us or 2ms".to_owned())
}

/// Whole seconds.
fn limit(text: &str) -> Result<Duration, String> {
    let time = tidegate_agent::config::duration(text);
    let whole = time.filter(|time| time.as_secs() > 0 && time.subsec_nanos() == 0);
    whole.ok_or_else(|| "give whole seconds, minutes or hours, such as 30s or 5min".to_owned())
}

/// Becomes the demo, which runs the program.
///
/// # Errors
/// When the demo is not installed, or cannot be started.
pub(super) fn run(args: &Args) -> anyhow::Result<u8> {
    let mut command = super::demo::command()?;
    let role = if args.online { "online" } else { "offline" };
    command
        .args(["--role", role])
        .args(["--kernel-us", &args.kernel.as_micros().to_string()])
        .args(args.alone.then_some("--alone"));
    if let Some(limit) = args.limit {
        command.args(["--end-after", &limit.as_secs().to_string()]);
    }
    command.arg("--").args(&args.command);
    Err(super::demo::become_it(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_the_virtual_gpu_cannot_keep_are_refused() {
        assert_eq!(kernel("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(kernel("1us"), Ok(Duration::from_micros(1)));
        for wrong in ["0us", "61s", "100ns", "20", "soon"] {
            let said = kernel(wrong).expect_err(wrong);
            assert!(said.contains("500us"), "{said}");
        }
        assert_eq!(limit("2min"), Ok(Duration::from_secs(120)));
        for wrong in ["0s", "1500ms", "30"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }
}
