"""The list of Octavo's parts, and their known vulnerabilities: `make sbom`, `make audit`.

`sbom` installs Octavo alone, as its users do, and lists the installed packages (CycloneDX). `audit`
asks an advisory database about that list. A question without an answer is never reported as
"nothing found".
"""
