"""What the packer leaves out of wheels is not there on the other side, and all else is, in slices that travel one by one."""

import base64
import contextlib
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

import wheels

#: A package that goes on without one of its parts, as the engines do.
FILES = {
    "made/__init__.py": b"try:\n    from made import _heavy\nexcept ImportError:\n    _heavy = None\nfrom made import kept\n",
    "made/_heavy.py": b"raise SystemExit('what was left out was loaded')\n",
    "made/kept.py": b"DATA = open(__file__.replace('kept.py', 'data.bin'), 'rb').read()\n",
    "made-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: made\nVersion: 1.0\n",
    "made-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def wheel(folder):
    path = os.path.join(folder, "made-1.0-py3-none-any.whl")
    # The same megabyte twice, farther apart than a wheel's own compression looks back.
    part = os.urandom(1 << 20)
    files = {**FILES, "made/data.bin": part + part}
    rows = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
            for name, data in files.items()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(name, data)
        file.writestr("made-1.0.dist-info/RECORD", "\n".join([*rows, "made-1.0.dist-info/RECORD,,"]) + "\n")
    return path, part


class Packed(unittest.TestCase):
    def setUp(self):
        self.scratch = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = os.path.join(self.scratch, "wheels")
        os.mkdir(self.folder)
        self.path, self.part = wheel(self.folder)
        self.said = self.enterContext(contextlib.redirect_stdout(io.StringIO()))

    def enterContext(self, one):
        value = one.__enter__()
        self.addCleanup(one.__exit__, None, None, None)
        return value

    def test_a_lean_wheel_arrives_in_slices_and_imports_without_what_was_left_out(self):
        wheels.LEFT_OUT["made"] = {"made/_heavy*": "its import stands in a try"}
        self.addCleanup(wheels.LEFT_OUT.pop, "made")
        wheels.lean(self.folder, [])
        self.assertIn("its import stands in a try", self.said.getvalue())
        bundle = os.path.join(self.scratch, "bundle.tar")
        subprocess.run(["tar", "-C", self.scratch, "-cf", bundle, "wheels"], check=True)
        bundle = wheels.compressed(bundle)
        # One megabyte of the two.
        self.assertLess(os.path.getsize(bundle), 1.2 * (1 << 20))
        whole, wheels.SLICE = wheels.SLICE, 1 << 19
        out, site = os.path.join(self.scratch, "out"), os.path.join(self.scratch, "there")
        count = wheels.slices(bundle, out, "made")
        wheels.SLICE = whole
        self.assertEqual(count, 3)
        env = {**os.environ, "TIDEGATE_WHEELS": os.path.join(self.scratch, "store")}

        def sh(*command):
            return subprocess.run(["sh", *command], env=env, capture_output=True, text=True, check=False)

        join = os.path.join(env["TIDEGATE_WHEELS"], "made/join")
        for number in range(count):
            self.assertEqual(sh(os.path.join(out, f"slice-{number:02}/take")).returncode, 0)
            done = sh(join, site)
            if number + 1 < count:
                self.assertIn(f"{number + 1} of {count} parts of made", done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        asked = "import made; print(made._heavy, len(made.kept.DATA))"
        done = subprocess.run([sys.executable, "-c", asked], env={**os.environ, "PYTHONPATH": f"{site}/site"},
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.stdout.split(), ["None", str(2 << 20)], done.stderr)

    def test_a_pattern_that_names_nothing_any_more_is_told(self):
        wheels.LEFT_OUT["made"] = {"made/_gone*": "as it was once"}
        self.addCleanup(wheels.LEFT_OUT.pop, "made")
        with self.assertRaisesRegex(SystemExit, "has nothing called made/_gone"):
            wheels.lean(self.folder, [])

    def test_what_is_dropped_besides_is_no_more_in_the_list_of_files(self):
        wheels.lean(self.folder, ["made/data*"])
        with zipfile.ZipFile(self.path) as file:
            self.assertNotIn("made/data.bin", file.namelist())
            self.assertNotIn("data.bin", file.read("made-1.0.dist-info/RECORD").decode())
            self.assertIn("made/_heavy.py", file.namelist())


if __name__ == "__main__":
    unittest.main()
