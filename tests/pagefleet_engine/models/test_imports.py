"""What the API process imports of the models package stays free of torch."""

import subprocess
import sys

MODULES = ("source", "config_files", "gguf", "tokenizer", "tensor_names", "packed")


def test_files_configuration_and_tokenizer_need_no_torch() -> None:
    imports = "; ".join(f"import pagefleet_engine.models.{name}" for name in MODULES)
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
