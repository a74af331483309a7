//! What no package of Debian's has, played: the kubelets, node-feature-discovery and the descheduler.
//!
//! ```text
//!   kubelet       runs the command of a pod that is bound to its node, on this machine and with the node's GPU; says
//!                 that it runs, or how it ended; ends it when it is deleted. No containers, images or volumes.
//!   discovery     makes labels of our own prefix of a node's feature file, as node-feature-discovery's documentation
//!                 says a file is read, and an extended resource of its slots, as the rule of place.yaml says
//!   descheduler   RemovePodsViolatingNodeAffinity with nodeFit: a pod whose node no longer has the labels that the pod
//!                 asks for is evicted by the Eviction API, if another node has, and room
//! ```
//!
//! Each goes by the documentation of what it plays and shares no code with what writes the file.

use super::api::Api;
use crate::clock::monotonic_ns;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// What labels of ours begin with.
pub const PREFIX: &str = "tidegate.dev/";
/// The label of one GPU of the profile.
pub const LABEL: &str = "tidegate.dev/summarise.1";
/// The extended resource.
pub const SLOTS: &str = "tidegate.dev/slots";

/// What the players know of a node.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Its feature file.
    pub features: PathBuf,
    /// The environment of what runs there.
    pub environment: Vec<(OsString, OsString)>,
}

/// A pod that was first seen on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its name.
    pub pod: String,
    /// Its node's.
    pub node: String,
    /// When, on the monotonic clock.
    pub at_ns: u64,
    /// What the node's feature file said then.
    pub said: BTreeMap<String, String>,
}

/// The kubelets of all nodes.
#[derive(Debug, Default)]
pub struct Kubelets {
    running: BTreeMap<String, Child>,
    /// In order.
    pub bound: Vec<Bound>,
}

fn path(pod: &Value) -> String {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
    format!(
        "/api/v1/namespaces/{}/pods/{}",
        text("namespace"),
        text("name")
    )
}

fn end(child: &mut Child) {
    // SAFETY: a plain system call; the child leads a group of its own and was not yet waited for.
    unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
    let _ = child.wait();
}

impl Kubelets {
    /// One round.
    ///
    /// # Errors
    /// Of the API server: what runs goes on.
    pub fn round(&mut self, api: &Api, machines: &[Machine]) -> Result<(), String> {
        let pods = api.list("/api/v1/pods")?;
        for pod in &pods {
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            let Some(machine) = machines.iter().find(|own| own.name == node) else {
                continue;
            };
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                if let Some(mut child) = self.running.remove(uid) {
                    end(&mut child);
                }
                let now =
                    json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
                api.call("DELETE", &path(pod), super::api::Body::Json(&now))?;
                continue;
            }
            match pod["status"]["phase"].as_str() {
                Some("Pending") if !self.running.contains_key(uid) => self.begin(uid, pod, machine),
                Some("Succeeded" | "Failed") => continue,
                _ => {}
            }
            self.tell(api, uid, pod)?;
        }
        // A pod that somebody deleted by force is gone without a word.
        let known = |uid: &str| pods.iter().any(|pod| pod["metadata"]["uid"] == uid);
        self.running.retain(|uid, child| {
            let stays = known(uid);
            if !stays {
                end(child);
            }
            stays
        });
        Ok(())
    }

    fn begin(&mut self, uid: &str, pod: &Value, machine: &Machine) {
        let words = pod["spec"]["containers"][0]["command"].as_array();
        let words = words.into_iter().flatten();
        let words: Vec<&str> = words.filter_map(Value::as_str).collect();
        let child = Command::new(words[0])
            .args(&words[1..])
            .envs(machine.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{words:?}: {error}"));
        self.running.insert(uid.to_owned(), child);
        self.bound.push(Bound {
            pod: pod["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            node: machine.name.clone(),
            at_ns: monotonic_ns(),
            said: labels(machine),
        });
    }

    /// Says what became of a pod, where that is not said yet.
    fn tell(&mut self, api: &Api, uid: &str, pod: &Value) -> Result<(), String> {
        let Some(child) = self.running.get_mut(uid) else {
            return Ok(());
        };
        let ended = child.try_wait().expect("a child can be waited for");
        let phase = match ended {
            None => "Running",
            Some(status) if status.success() => "Succeeded",
            Some(_) => "Failed",
        };
        if pod["status"]["phase"] == phase {
            return Ok(());
        }
        let ready = if phase == "Running" { "True" } else { "False" };
        let message =
            ended.map(|status| format!("code {:?} signal {:?}", status.code(), status.signal()));
        let status = json!({"status": {
            "phase": phase, "message": message, "conditions": [{"type": "Ready", "status": ready}],
        }});
        api.merge(&format!("{}/status", path(pod)), &status)
            .map(drop)
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.running.values_mut().for_each(end);
    }
}

/// What a node's feature file says at this moment: nothing, if it has lapsed.
#[must_use]
pub fn labels(machine: &Machine) -> BTreeMap<String, String> {
    let text = fs::read_to_string(&machine.features).unwrap_or_default();
    let now = Command::new("date")
        .args(["-u", "+%Y-%m-%dT%H:%M:%S"])
        .output();
    let now = now.expect("coreutils").stdout;
    let now = String::from_utf8_lossy(&now).trim().to_owned();
    let (mut found, mut lapsed) = (BTreeMap::new(), false);
    for line in text.lines() {
        if let Some(at) = line.strip_prefix("# +expiry-time=") {
            // RFC 3339 in UTC compares as text.
            lapsed = at.get(..19).is_none_or(|at| at <= now.as_str());
        } else if let Some((key, value)) = line.split_once('=').filter(|_| !lapsed) {
            found.insert(key.to_owned(), value.to_owned());
        }
    }
    found
}

/// node-feature-discovery's worker and master, for all nodes.
///
/// # Errors
/// Of the API server.
pub fn discover(api: &Api, machines: &[Machine]) -> Result<(), String> {
    for machine in machines {
        let said = labels(machine);
        let at = format!("/api/v1/nodes/{}", machine.name);
        let node = api.get(&at)?;
        let has = node["metadata"]["labels"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        let own = |name: &&String| name.starts_with(PREFIX);
        let mut change = Map::new();
        for name in has
            .keys()
            .filter(own)
            .filter(|name| !said.contains_key(*name))
        {
            change.insert(name.clone(), Value::Null);
        }
        // The rule of place.yaml makes slots a resource and no label.
        for (name, value) in said.iter().filter(|(name, _)| *name != SLOTS) {
            if has.get(name).and_then(Value::as_str) != Some(value) {
                change.insert(name.clone(), json!(value));
            }
        }
        // Values first: a slot is worth nothing without one.
        if !change.is_empty() {
            api.merge(&at, &json!({"metadata": {"labels": change}}))?;
        }
        let slots = said.get(SLOTS).map_or(Value::Null, |slots| json!(slots));
        if node["status"]["allocatable"][SLOTS] != slots {
            let change =
                json!({"status": {"capacity": {SLOTS: slots}, "allocatable": {SLOTS: slots}}});
            api.merge(&format!("{at}/status"), &change)?;
        }
    }
    Ok(())
}

/// Whether a node with these labels has what a pod requires of a node.
///
/// # Panics
/// When the pod compares by anything but `Gt`, which no example does.
#[must_use]
pub fn suits(pod: &Value, labels: &Value) -> bool {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = &pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"];
    let term = |term: &Value| {
        let mut all = term["matchExpressions"].as_array().into_iter().flatten();
        all.all(|one| {
            assert_eq!(one["operator"], "Gt", "{one}");
            let number = |value: &Value| value.as_str().and_then(|text| text.parse::<i64>().ok());
            let has = number(&labels[one["key"].as_str().unwrap_or_default()]);
            has.zip(number(&one["values"][0]))
                .is_some_and(|(has, than)| has > than)
        })
    };
    terms.as_array().is_none_or(|terms| terms.iter().any(term))
}

fn slots(value: &Value) -> u32 {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// One round of the descheduler.
///
/// # Errors
/// Of the API server.
pub fn deschedule(api: &Api) -> Result<(), String> {
    let (nodes, pods) = (api.list("/api/v1/nodes")?, api.list("/api/v1/pods")?);
    let live = |pod: &&Value| {
        pod["metadata"]["deletionTimestamp"].is_null()
            && !matches!(
                pod["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            )
    };
    let asks = |pod: &Value| slots(&pod["spec"]["containers"][0]["resources"]["limits"][SLOTS]);
    let free = |node: &Value| {
        let here = pods.iter().filter(live);
        let here = here.filter(|pod| pod["spec"]["nodeName"] == node["metadata"]["name"]);
        slots(&node["status"]["allocatable"][SLOTS]).saturating_sub(here.map(asks).sum())
    };
    for pod in pods.iter().filter(live) {
        let home = |node: &&Value| node["metadata"]["name"] == pod["spec"]["nodeName"];
        let Some(node) = nodes.iter().find(home) else {
            continue;
        };
        let takes =
            |node: &&Value| suits(pod, &node["metadata"]["labels"]) && free(node) >= asks(pod);
        if suits(pod, &node["metadata"]["labels"])
            || !nodes
                .iter()
                .filter(|node| !home(node))
                .any(|node| takes(&node))
        {
            continue;
        }
        api.evict(pod["metadata"]["name"].as_str().unwrap_or_default())?;
    }
    Ok(())
}
