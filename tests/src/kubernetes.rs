//! A control plane of Kubernetes on this machine: etcd, API server, scheduler and the Job controller, as
//! `scripts/cluster build` makes them of Debian's source package, on loopback.
//!
//! Each node is an object of the API, with a virtual GPU and an agent of its own. Beside each runs what place.yaml's
//! DaemonSet runs, once a second. What no package has is played: see [`played`]. Nothing outside a temporary directory
//! is touched, and no port is fixed. What a value started ends with it.

pub mod api;
pub mod audit;
pub mod played;

use crate::clock::monotonic_ns;
use crate::slurm::{AGENT, PROFILE, ports};
use crate::{Node, Running, TempDir, compile, wait_for};
use api::{Api, Body, TOKEN};
use audit::Did;
use played::{Bound, Kubelets, LABEL, Machine};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Names the directory with the programs.
pub const PROGRAMS: &str = "TIDEGATE_KUBERNETES";
/// How far back the history counts by which a node says what it gives: twenty windows.
pub const HISTORY: Duration = Duration::from_secs(40);
/// Where the API server writes down what it did.
const AUDIT: &str = "audit.log";
/// How often the players look, and a node says what it gives.
const ROUND: Duration = Duration::from_secs(1);
/// How often a node says that it does. It is three times as often, lest a busy machine has a file lapse.
const PERIOD: Duration = Duration::from_secs(3);
/// A file lapses so long after it was written.
pub const LAPSES: Duration = Duration::from_secs(3 * PERIOD.as_secs());
/// How often a kubelet looks for what is new.
const KUBELET: Duration = Duration::from_millis(200);

/// Why no control plane runs here.
#[must_use]
pub fn missing() -> Option<String> {
    let Some(dir) = std::env::var_os(PROGRAMS) else {
        return Some(format!("{PROGRAMS} names no programs: see scripts/cluster"));
    };
    let needed = [
        "etcd",
        "kube-apiserver",
        "kube-scheduler",
        "kube-controller-manager",
    ];
    let absent = needed
        .iter()
        .find(|name| !Path::new(&dir).join(name).exists());
    absent.map(|name| format!("no {name} in {}", dir.display()))
}

/// One node.
#[derive(Debug)]
pub struct Host {
    /// Its name in the API.
    pub name: String,
    /// Its GPU and agent.
    pub node: Node,
    /// Whether the side-car goes on saying what the node gives.
    pub says: Arc<AtomicBool>,
    config: String,
    machine: Machine,
}

/// A cluster.
#[derive(Debug)]
pub struct Kubernetes {
    /// Its nodes.
    pub hosts: Vec<Host>,
    /// Its API server.
    pub api: Api,
    etcd: Option<Running>,
    apiserver: Option<Running>,
    scheduler: Option<Running>,
    manager: Option<Running>,
    ports: Vec<u16>,
    bound: Arc<Mutex<Vec<Bound>>>,
    stop: Arc<AtomicBool>,
    players: Vec<JoinHandle<()>>,
    dir: TempDir,
}

impl Kubernetes {
    /// Starts one with so many nodes, on which nothing is said: the directory of profiles is empty.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(count: usize) -> Self {
        let dir = TempDir::new();
        let root = dir.path();
        for name in ["etcd", "certificates", "profiles", "known"] {
            fs::create_dir_all(root.join(name)).expect("writable");
        }
        fs::write(root.join("known/summarise.toml"), PROFILE).expect("writable");
        let hosts = (1..=count).map(host).collect();
        let ports = ports(4);
        let api = Api::new(ports[2]);
        fs::write(
            root.join("tokens.csv"),
            format!("{TOKEN},admin,1,\"system:masters\"\n"),
        )
        .expect("writable");
        let reach = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "own",
            "clusters": [{"name": "own", "cluster": {"server": api.url(), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "own", "user": {"token": TOKEN}}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}],
        });
        fs::write(root.join("reach"), reach.to_string()).expect("writable");
        let own = format!("127.0.0.1:{}", ports[3]);
        // A pod that fits nowhere is tried again after 1, 2, 4 s and so on, 10 s at most; here 4 s.
        let scheduling = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1beta1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": root.join("reach")}, "leaderElection": {"leaderElect": false},
            "podMaxBackoffSeconds": 4, "healthzBindAddress": own, "metricsBindAddress": own,
        });
        fs::write(root.join("scheduling"), scheduling.to_string()).expect("writable");
        fs::write(root.join("audit"), audit::policy().to_string()).expect("writable");
        let key = Command::new("openssl")
            .args(["genrsa", "-out"])
            .arg(root.join("key"))
            .arg("2048")
            .output()
            .expect("openssl is installed");
        assert!(key.status.success(), "{key:?}");
        let mut own = Self {
            hosts,
            api,
            etcd: None,
            apiserver: None,
            scheduler: None,
            manager: None,
            ports,
            bound: Arc::default(),
            stop: Arc::default(),
            players: Vec::new(),
            dir,
        };
        own.start_server();
        own.start_controllers();
        for host in &own.hosts {
            own.register(host);
        }
        own.play();
        own
    }

    fn program(&self, name: &str) -> Command {
        let dir = std::env::var_os(PROGRAMS).map_or_else(PathBuf::new, PathBuf::from);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join(format!("{name}.log")))
            .expect("writable");
        let mut command = Command::new(dir.join(name));
        command
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log);
        command
    }

    /// Starts etcd and the API server (again), and waits until it serves.
    ///
    /// # Panics
    /// When it does not.
    pub fn start_server(&mut self) {
        let clients = format!("http://127.0.0.1:{}", self.ports[0]);
        let peers = format!("http://127.0.0.1:{}", self.ports[1]);
        let mut command = self.program("etcd");
        command.args([
            "--data-dir",
            "etcd",
            "--listen-client-urls",
            &clients,
            "--advertise-client-urls",
            &clients,
        ]);
        command.args([
            "--listen-peer-urls",
            &peers,
            "--initial-advertise-peer-urls",
            &peers,
        ]);
        command.args(["--initial-cluster", &format!("default={peers}")]);
        self.etcd = Some(Running::start("etcd", &mut command));
        let mut command = self.program("kube-apiserver");
        command.args([
            "--etcd-servers",
            &clients,
            "--cert-dir",
            "certificates",
            "--bind-address",
            "127.0.0.1",
        ]);
        command.args([
            "--secure-port",
            &self.ports[2].to_string(),
            "--advertise-address",
            "10.255.0.1",
        ]);
        command.args([
            "--authorization-mode",
            "RBAC",
            "--token-auth-file",
            "tokens.csv",
        ]);
        command.args([
            "--service-account-issuer",
            "https://tidegate",
            "--service-account-key-file",
            "key",
        ]);
        command.args([
            "--service-account-signing-key-file",
            "key",
            "--service-cluster-ip-range",
            "10.96.0.0/16",
        ]);
        command.args([
            "--disable-admission-plugins",
            "ServiceAccount,TaintNodesByCondition",
        ]);
        command.args(["--audit-policy-file", "audit", "--audit-log-path", AUDIT]);
        self.apiserver = Some(Running::start("kube-apiserver", &mut command));
        wait_for("the API server serves", || {
            self.api.get("/healthz").ok()?;
            self.api.get("/api/v1/namespaces/default").ok().map(drop)
        });
    }

    /// Kills etcd and the API server, as a crash does.
    pub fn kill_server(&mut self) {
        (self.apiserver, self.etcd) = (None, None);
    }

    fn start_controllers(&mut self) {
        let mut command = self.program("kube-scheduler");
        command.args(["--config", "scheduling", "--secure-port", "0"]);
        self.scheduler = Some(Running::start("kube-scheduler", &mut command));
        let mut command = self.program("kube-controller-manager");
        command.args([
            "--kubeconfig",
            "reach",
            "--leader-elect=false",
            "--port",
            "0",
            "--secure-port",
            "0",
        ]);
        command.args(["--controllers", "job"]);
        self.manager = Some(Running::start("kube-controller-manager", &mut command));
    }

    /// The node's object, as its kubelet would make it.
    fn register(&self, host: &Host) {
        let name = &host.name;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let made = self.api.call("POST", "/api/v1/nodes", Body::Json(&node));
        made.expect("a node can be made");
        let has = json!({"cpu": "2", "memory": "1Gi", "pods": "10"});
        let status = json!({"status": {
            "capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}],
        }});
        let told = self
            .api
            .merge(&format!("/api/v1/nodes/{name}/status"), &status);
        told.expect("a node can be ready");
    }

    /// Starts side-cars, kubelets, discovery and descheduler. An API server that is away is asked again.
    fn play(&mut self) {
        for host in &self.hosts {
            let (stop, says) = (Arc::clone(&self.stop), Arc::clone(&host.says));
            let args = self.publish(host, "profiles");
            let (run_dir, tool) = (host.node.run_dir(), crate::built("tidegate"));
            self.players.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if says.load(Ordering::Relaxed) {
                        let mut command = Command::new(&tool);
                        command.args(&args).env("TIDEGATE_RUN_DIR", &run_dir);
                        let output = command
                            .stdin(Stdio::null())
                            .output()
                            .expect("tidegate starts");
                        assert!(output.status.success(), "{output:?}");
                    }
                    std::thread::sleep(ROUND);
                }
            }));
        }
        let machines: Vec<Machine> = self.hosts.iter().map(|host| host.machine.clone()).collect();
        let (stop, bound, api) = (
            Arc::clone(&self.stop),
            Arc::clone(&self.bound),
            self.api.clone(),
        );
        let own = machines.clone();
        self.players.push(std::thread::spawn(move || {
            // What they run ends with them.
            let mut kubelets = Kubelets::default();
            while !stop.load(Ordering::Relaxed) {
                let _ = kubelets.round(&api, &own);
                lock(&bound).clone_from(&kubelets.bound);
                std::thread::sleep(KUBELET);
            }
        }));
        let (stop, api) = (Arc::clone(&self.stop), self.api.clone());
        self.players.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if played::discover(&api, &machines).is_ok() {
                    let _ = played::deschedule(&api);
                }
                std::thread::sleep(ROUND);
            }
        }));
    }

    /// What the DaemonSet of place.yaml runs, with a period and a history of seconds.
    fn publish(&self, host: &Host, profiles: &str) -> Vec<String> {
        let dir = host.node.dir().display();
        let text = format!(
            "place publish --engine nfd --period {}s --file {} --profiles {}/{profiles} --history {dir}/history.ring \
             --memo {dir}/place.json --window 2s --least 2s --since {}s",
            PERIOD.as_secs(),
            host.machine.features.display(),
            self.dir.path().display(),
            HISTORY.as_secs(),
        );
        text.split(' ').map(str::to_owned).collect()
    }

    /// What a node would say with profiles, per cent.
    ///
    /// # Panics
    /// When its program fails.
    #[must_use]
    pub fn would_give(&self, at: usize) -> Option<u8> {
        let host = &self.hosts[at];
        let mut args = self.publish(host, "known");
        args.push("--dry-run".to_owned());
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let output = host.node.tidegate(&args);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find(|(key, _)| *key == LABEL)?.1.parse().ok()
    }

    /// Every node gives what profiles say from now on.
    ///
    /// # Panics
    /// When the directory is gone.
    pub fn give_profiles(&self) {
        fs::write(self.dir.path().join("profiles/summarise.toml"), PROFILE).expect("writable");
    }

    /// Makes the Job of the example, which asks for `percent` and runs the offline program.
    ///
    /// # Panics
    /// When it is refused.
    pub fn submit(&self, name: &str, percent: u8) {
        let example =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/examples/kubernetes/job.yaml");
        let text = fs::read_to_string(example).expect("readable");
        let program = compile("offline", &["-lcuda"]);
        let command = json!([program, "10000000", "0"]).to_string();
        let parts = [
            ("name: nightly", format!("name: {name}")),
            ("values: [\"39\"]", format!("values: [\"{}\"]", percent - 1)),
            ("[\"python\", \"batch.py\"]", command),
        ];
        let text = parts.iter().fold(text, |text, (of, by)| {
            assert!(text.contains(of), "the example has {of}");
            text.replacen(of, by, 1)
        });
        let made = self.api.call(
            "POST",
            "/apis/batch/v1/namespaces/default/jobs",
            Body::Yaml(&text),
        );
        made.expect("a job can be made");
    }

    /// Takes a job and its pods away.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove(&self, name: &str) {
        let now =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        let path = format!("/apis/batch/v1/namespaces/default/jobs/{name}");
        self.api
            .call("DELETE", &path, Body::Json(&now))
            .expect("there");
        // No garbage collector runs here. A pod has its slot until it is gone.
        wait_for("its pods are gone", || {
            let pods = self.all_pods(name);
            let live = pods
                .iter()
                .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
            for pod in live {
                let pod = pod["metadata"]["name"].as_str().unwrap_or_default();
                let path = format!("/api/v1/namespaces/default/pods/{pod}");
                let _ = self.api.call("DELETE", &path, Body::None);
            }
            pods.is_empty().then_some(())
        });
    }

    fn all_pods(&self, job: &str) -> Vec<Value> {
        let path = format!("/api/v1/namespaces/default/pods?labelSelector=job-name%3D{job}");
        self.api.list(&path).expect("the API server serves")
    }

    /// The pods of a job that are not going.
    ///
    /// # Panics
    /// When the server is away.
    #[must_use]
    pub fn pods(&self, job: &str) -> Vec<Value> {
        let live = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
        self.all_pods(job).into_iter().filter(live).collect()
    }

    /// Where a job runs, and the name of its pod.
    #[must_use]
    pub fn running(&self, job: &str) -> Option<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let pods = self.pods(job);
        let pod = pods
            .iter()
            .find(|pod| pod["status"]["phase"] == "Running")?;
        Some((
            text(&pod["spec"]["nodeName"]),
            text(&pod["metadata"]["name"]),
        ))
    }

    /// Why the scheduler has no node for a job, once it has said so.
    #[must_use]
    pub fn why_waiting(&self, job: &str) -> Option<String> {
        let pod = self.pods(job).into_iter().next()?;
        let conditions = pod["status"]["conditions"].as_array()?;
        let said = conditions
            .iter()
            .find(|one| one["type"] == "PodScheduled" && one["status"] == "False")?;
        Some(said["message"].as_str()?.to_owned())
    }

    /// What a node's label says, per cent.
    #[must_use]
    pub fn gives(&self, name: &str) -> Option<u8> {
        let node = self.api.get(&format!("/api/v1/nodes/{name}")).ok()?;
        node["metadata"]["labels"][LABEL].as_str()?.parse().ok()
    }

    /// What a kubelet first saw where.
    #[must_use]
    pub fn bound(&self) -> Vec<Bound> {
        lock(&self.bound).clone()
    }

    /// What the API server did since it was first started, in its own words and order.
    #[must_use]
    pub fn did(&self) -> Vec<Did> {
        audit::read(&self.dir.path().join(AUDIT))
    }

    /// Pods that were evicted by its Eviction API, in order.
    #[must_use]
    pub fn evicted(&self) -> Vec<String> {
        let did = self.did().into_iter();
        did.filter_map(|did| match did {
            Did::Evicted(pod) => Some(pod),
            _ => None,
        })
        .collect()
    }

    /// The node that runs a pod, and when it began there.
    #[must_use]
    pub fn began(&self, pod: &str) -> Option<u64> {
        let bound = self.bound();
        bound.iter().find(|own| own.pod == pod).map(|own| own.at_ns)
    }

    /// What the programs wrote last, for who looks at a failure.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = format!("{:?}\n", self.bound());
        for did in self.did() {
            text += &format!("{did:?}\n");
        }
        for name in [
            "etcd",
            "kube-apiserver",
            "kube-scheduler",
            "kube-controller-manager",
        ] {
            let all =
                fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default();
            let last: Vec<_> = all.lines().rev().take(10).collect();
            let last: Vec<_> = last.into_iter().rev().collect();
            text += &format!("== {name} at {} ns\n{}\n", monotonic_ns(), last.join("\n"));
        }
        text
    }
}

fn lock(bound: &Mutex<Vec<Bound>>) -> std::sync::MutexGuard<'_, Vec<Bound>> {
    bound.lock().unwrap_or_else(PoisonError::into_inner)
}

fn host(number: usize) -> Host {
    let name = format!("n{number}");
    let mut node = Node::device_only(&[]);
    let history = node.dir().join("history.ring");
    let history = format!("[history]\nfile = \"{}\"", history.display());
    let config = AGENT.replace("[history]", &history);
    node.start_agent(&config);
    let features = node.dir().join("features.d/tidegate");
    fs::create_dir_all(features.parent().expect("a directory")).expect("writable");
    let command = node.preloaded("true", "offline");
    let environment = command.get_envs();
    let environment =
        environment.filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let machine = Machine {
        name: name.clone(),
        features,
        environment: environment.collect(),
    };
    Host {
        name,
        node,
        says: Arc::new(AtomicBool::new(true)),
        config,
        machine,
    }
}

impl Host {
    /// What its feature file says at this moment, per cent: nothing, once that has lapsed.
    #[must_use]
    pub fn says_now(&self) -> Option<u8> {
        played::labels(&self.machine).get(LABEL)?.parse().ok()
    }

    /// Starts its agent again.
    pub fn start_agent(&mut self) {
        self.node.start_agent(&self.config);
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        self.stop.store(true, Ordering::Relaxed);
        for player in self.players.drain(..) {
            let _ = player.join();
        }
    }
}
