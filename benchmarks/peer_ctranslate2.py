"""The harness's row of CTranslate2 with variables of the environment set, such as `--variant int8:CT2_USE_MKL=0`."""

import os
import runpy
import sys

place = sys.argv.index("--variant") + 1
sys.argv[place], _, setting = sys.argv[place].partition(":")
name, _, value = setting.partition("=")
os.environ[name] = value
sys.path.insert(0, os.environ["BENCH_DIR"])
runpy.run_path(os.path.join(os.environ["BENCH_DIR"], "peer_ct2.py"), run_name="__main__")
