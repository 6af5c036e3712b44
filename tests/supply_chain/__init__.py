"""What Octavo is made of, and whether any of it is known to be bad: `make sbom`, `make audit`.

`sbom` installs Octavo alone, as its users do, and lists what came with it (CycloneDX). `audit` asks
an advisory database about that list. What could not be asked is never told as "nothing found".
"""
