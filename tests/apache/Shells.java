import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.Arrays;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;
import org.apache.commons.configuration2.CompositeConfiguration;
import org.apache.bookkeeper.common.conf.ConfigurationUtil;

/**
 * BookieShell's main, again and again in one process: a start of Java costs more than a command.
 *
 * <p>Each line of the input is a file of configuration and a command, with tabs between its words.
 * After what the command prints there is a line "EXIT code".
 */
public final class Shells {
    private Shells() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            int code = -1;
            try {
                CompositeConfiguration conf = new CompositeConfiguration();
                conf.addConfiguration(ConfigurationUtil.newConfiguration(
                        c -> c.propertiesBuilder(new File(words[0]))));
                ServerConfiguration server = new ServerConfiguration();
                BookieShell shell = new BookieShell(
                        LedgerIdFormatter.newLedgerIdFormatter(server),
                        EntryFormatter.newEntryFormatter(server));
                shell.setConf(conf);
                code = shell.run(Arrays.copyOfRange(words, 1, words.length));
            } catch (Throwable error) {
                error.printStackTrace(System.out);
            }
            System.out.println("EXIT " + code);
            System.out.flush();
        }
    }
}
